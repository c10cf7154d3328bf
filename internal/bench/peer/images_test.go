package peer

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
)

// A peer has private keys of the gateway's: it runs the gateway's own image, or one that
// whoever installed the operator has allowed, and no other.
func TestWhichImagesPeersMayHave(t *testing.T) {
	const gateway, digest = "ghcr.io/qtls-dev/qtls-gateway:1", "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	for name, c := range map[string]struct {
		allowed []string
		image   string
		want    bool
	}{
		"none is named":                      {nil, "", true},
		"the gateway's is named":             {nil, gateway, true},
		"another tag of the gateway's":       {nil, "ghcr.io/qtls-dev/qtls-gateway:2", false},
		"nothing is allowed":                 {nil, "nginx:1.29", false},
		"as it is allowed":                   {[]string{"haproxy:3.2", "nginx:1.29"}, "nginx:1.29", true},
		"another tag":                        {[]string{"nginx:1.29"}, "nginx:1.30", false},
		"a digest that the tag does not say": {[]string{"nginx:1.29"}, "nginx:1.29" + digest, false},
		"any tag":                            {[]string{"nginx:*"}, "nginx:1.29", true},
		"any tag, and a digest":              {[]string{"nginx:*"}, "nginx:1.29" + digest, true},
		"a registry that looks like a tag":   {[]string{"nginx:*"}, "nginx:5000/evil", false},
		"an image of a registry":             {[]string{"registry.example.com/peers/*"}, "registry.example.com/peers/nginx" + digest, true},
		"one below":                          {[]string{"registry.example.com/peers/*"}, "registry.example.com/peers/evil/nginx:1", false},
		"one of another registry":            {[]string{"registry.example.com/peers/*"}, "registry.example.com.evil.com/peers/nginx:1", false},
		"a dot is a dot":                     {[]string{"registry.example.com/*"}, "registryXexample.com/nginx", false},
		"a part of a name":                   {[]string{"nginx"}, "nginx-evil", false},
		"the same by its whole name":         {[]string{"nginx:1.29"}, "docker.io/library/nginx:1.29", false},
		"any without a registry":             {[]string{"*"}, "nginx:1.29", true},
		"no image is any":                    {[]string{"*"}, "evil.com/nginx:1.29", false},
		"what is no reference at all":        {[]string{"nginx:1.29"}, "[", false},
	} {
		got, err := ImageOf(1, v1alpha1.BenchmarkPeer{Name: "other", Image: c.image}, generator.Settings{GatewayImage: gateway, PeerImages: c.allowed})
		if (err == nil) != c.want || c.want && got != cmp.Or(c.image, gateway) {
			t.Errorf("%s: runs %q, %v", name, got, err)
		}
		if err == nil {
			continue
		}
		// The refusal names the field, the value, who it is, what may be, and the remedy.
		for _, part := range append([]string{"spec.peers[1].image", `"` + c.image + `"`, `peer "other"`, "private keys", "benchmarks.peerImages"}, c.allowed...) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %s", name, err, part)
			}
		}
	}
}

func TestPatternsOfImages(t *testing.T) {
	for text, want := range map[string][]string{
		"":                               nil,
		"nginx:1.29":                     {"nginx:1.29"},
		"nginx:*,registry.example.com/*": {"nginx:*", "registry.example.com/*"},
	} {
		if got, err := ParseImages(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{",", "nginx,", "a b", "nginx, haproxy", "ngin[x]", `a\b`, "nginx?"} {
		if got, err := ParseImages(text); err == nil || !strings.Contains(err.Error(), "no pattern of an image") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
