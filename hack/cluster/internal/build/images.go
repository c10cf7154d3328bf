package build

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"qtls.dev/qtls/hack/cluster/internal/cache"
	"qtls.dev/qtls/hack/cluster/internal/images"
)

// The images are named so that no registry can ever be asked for them: .local is reserved
// (RFC 6762).
const (
	ImageRegistry  = "qtls.local"
	ImageNamespace = "cluster"
	imagePrefix    = ImageRegistry + "/" + ImageNamespace + "/"
)

// An ImageName is the file name of an image's archive.
type ImageName string

// The images.
const (
	PauseImage         ImageName = "pause.tar"
	CoreDNSImage       ImageName = "coredns.tar"
	MetricsServerImage ImageName = "metrics-server.tar"
	CertManagerControl ImageName = "cert-manager-controller.tar"
	CertManagerWebhook ImageName = "cert-manager-webhook.tar"
	CertManagerInject  ImageName = "cert-manager-cainjector.tar"
)

// CertManagerImages are the images that cert-manager's chart runs.
func CertManagerImages() []ImageName {
	return []ImageName{CertManagerControl, CertManagerWebhook, CertManagerInject}
}

const nonRoot = "65532:65532"

// catalogue maps the images to what is in them.
var catalogue = map[ImageName]struct {
	program Program
	image   images.Image
}{
	PauseImage:         {Pause, images.Image{Reference: imagePrefix + "pause:1", Program: "pause", User: nonRoot}},
	CoreDNSImage:       {CoreDNS, images.Image{Reference: imagePrefix + "coredns:1", Program: "coredns"}},
	MetricsServerImage: {MetricsServer, images.Image{Reference: imagePrefix + "metrics-server:1", Program: "metrics-server", User: nonRoot}},
	CertManagerControl: certManager("controller"),
	CertManagerWebhook: certManager("webhook"),
	CertManagerInject:  certManager("cainjector"),
}

func certManager(component string) struct {
	program Program
	image   images.Image
} {
	return struct {
		program Program
		image   images.Image
	}{CertManager, images.Image{
		Reference: imagePrefix + "cert-manager-" + component + ":v" + CertManagerVersion,
		Program:   "cert-manager",
		Args:      []string{component},
		User:      nonRoot,
	}}
}

// Reference is the full name by which pods use the image.
func (n ImageName) Reference() string { return catalogue[n].image.Reference }

// Images returns the archives of the images, making those that are missing.
func (b *Builder) Images(ctx context.Context, wanted ...ImageName) ([]string, error) {
	needed := map[Program]bool{}
	for _, n := range wanted {
		if _, ok := catalogue[n]; !ok {
			return nil, fmt.Errorf("no image is called %q", n)
		}
		needed[catalogue[n].program] = true
	}
	programs, err := b.Programs(ctx, slices.Sorted(maps.Keys(needed))...)
	if err != nil {
		return nil, err
	}
	var archives []string
	for _, n := range wanted {
		c := catalogue[n]
		file := programs[c.program]
		// The program's own folder is named by what it was made from.
		key := cache.Key(filepath.Base(filepath.Dir(file)), fmt.Sprintf("%+v", c.image))
		dir, err := b.Cache.Ensure(ctx, "image-"+string(n), key, []string{string(n)}, func(_ []string, dir string) error {
			return b.Out.Step("making the image "+c.image.Reference, func() error {
				return images.Write(filepath.Join(dir, string(n)), c.image, file)
			})
		})
		if err != nil {
			return nil, err
		}
		archives = append(archives, filepath.Join(dir, string(n)))
	}
	return archives, nil
}

// All builds every program and image into the cache.
func (b *Builder) All(ctx context.Context) error {
	var programs []Program
	for _, g := range groups {
		for p := range maps.Keys(g.packages) {
			programs = append(programs, p)
		}
		for p := range maps.Keys(g.c) {
			programs = append(programs, p)
		}
	}
	slices.Sort(programs)
	if _, err := b.Programs(ctx, programs...); err != nil {
		return err
	}
	_, err := b.Images(ctx, slices.Sorted(maps.Keys(catalogue))...)
	return err
}
