package peer

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
)

// pattern has what references of images are made of, and *.
var pattern = regexp.MustCompile(`^[A-Za-z0-9._:/@*-]+$`)

// ParseImages reads patterns of images, between commas: references, in which * stands
// for anything but /.
func ParseImages(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	all := strings.Split(text, ",")
	for _, one := range all {
		if !pattern.MatchString(one) {
			return nil, fmt.Errorf("%q is no pattern of an image: a reference, in which * stands for anything but /", one)
		}
	}
	return all, nil
}

// ImageOf spec.peers[index]. A peer has the private keys of the gateway's listeners, so
// only the gateway's image and those that the operator's settings allow may be one. They
// are compared as they are written: `nginx` is not `docker.io/library/nginx`.
func ImageOf(index int, p v1alpha1.BenchmarkPeer, s generator.Settings) (string, error) {
	image := cmp.Or(p.Image, s.GatewayImage)
	allowed := slices.ContainsFunc(s.PeerImages, func(pattern string) bool {
		matches, err := path.Match(pattern, image)
		return matches && err == nil
	})
	if image == s.GatewayImage || allowed {
		return image, nil
	}
	others := "nothing else is allowed"
	if len(s.PeerImages) > 0 {
		others = "also allowed are " + strings.Join(s.PeerImages, ", ")
	}
	return "", fmt.Errorf("spec.peers[%d].image: peer %q may not run %q, for it would have the private keys of the gateway's listeners: leave the image out, for the gateway's own (%s), or have it allowed where the operator is installed (value benchmarks.peerImages of the chart)", index, p.Name, image, others)
}
