package certificate

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
)

func TestWhichKeysAreFormerOnes(t *testing.T) {
	now := issuedAt.Add(48 * time.Hour)
	key := func(pool, name string) keypair.Reference {
		return keypair.Reference{Pool: pool, Label: "web-ecdsa-p256-1-" + name + "abcdef"}
	}
	anothers := func(pool string) keypair.Reference {
		return keypair.Reference{Pool: pool, Label: "web2-ecdsa-p256-1-k3abcdef"}
	}
	before := []formerKey{{key("a", "k1"), issuedAt, "former"}, {key("a", "k2"), now.Add(-time.Minute), ""}}
	made, issued := record{Maker: "present"}, metav1.NewTime(issuedAt)
	made.Issued = &issued
	existing := made
	existing.Key = "k3"
	for name, c := range map[string]struct {
		present []byte
		has     record
		next    keypair.Reference
		want    []formerKey
	}{
		"a new key":                        {key("a", "k3").PEM(), made, key("a", "k4"), append(slices.Clone(before), formerKey{key("a", "k3"), now, "present"})},
		"an authority's, which is kept":    {key("a", "k3").PEM(), made, key("a", "k3"), before},
		"its own through another pool":     {key("a", "k3").PEM(), made, key("b", "k3"), before},
		"one of before by another pool":    {key("a", "k3").PEM(), made, key("b", "k1"), []formerKey{before[1], {key("a", "k3"), now, "present"}}},
		"one of before serves":             {key("b", "k1").PEM(), existing, key("b", "k4"), before[1:]},
		"one that was there before":        {key("a", "k3").PEM(), existing, key("a", "k4"), before},
		"nobody knows whether it was made": {key("a", "k3").PEM(), record{}, key("a", "k4"), append(slices.Clone(before), formerKey{key("a", "k3"), now, ""})},
		"another certificate's":            {anothers("a").PEM(), made, key("a", "k4"), before},
		"a key in a Secret":                {[]byte("-----BEGIN PRIVATE KEY-----"), made, key("a", "k4"), before},
		"back into a Secret":               {key("a", "k3").PEM(), made, keypair.Reference{}, append(slices.Clone(before), formerKey{key("a", "k3"), now, "present"})},
	} {
		s := state{Has: c.has, Secret: &corev1.Secret{Data: map[string][]byte{corev1.TLSPrivateKeyKey: c.present}}}
		s.Secret.Name = "web-ecdsa-p256"
		s.Secret.Annotations = map[string]string{v1alpha1.AnnotationPreviousKeys: formatFormerKeys(append(slices.Clone(before), formerKey{anothers("b"), issuedAt, "present"}))}
		if got, _ := s.formerKeys(c.next, now); !slices.EqualFunc(got, c.want, sameFormer) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got, _ := (state{}).formerKeys(key("a", "k1"), now); got != nil {
		t.Errorf("of no Secret: %+v", got)
	}
}

func sameFormer(a, b formerKey) bool {
	return a.Reference == b.Reference && a.replaced.Equal(b.replaced) && a.maker == b.maker
}

func TestWhoseKeyALabelIs(t *testing.T) {
	const secret = "web-ecdsa-p256"
	for label, want := range map[string]bool{
		"web-ecdsa-p256-1-abcdefgh":              true,
		"web-ecdsa-p256-12-abcdefgh":             true,
		"web2-ecdsa-p256-1-abcdefgh":             false,
		"web-ecdsa-p384-1-abcdefgh":              false,
		"web-ecdsa-p256-1-ecdsa-p256-1-abcdefgh": false, // of PQCCertificate web-ecdsa-p256-1
		"web-ecdsa-p256-x-abcdefgh":              false,
		"web-ecdsa-p256-1-abc":                   false,
		"web-ecdsa-p256-1-":                      false,
		"web-ecdsa-p256":                         false,
		"1-abcdefgh":                             false,
		"":                                       false,
	} {
		if madeUnder(secret, label) != want {
			t.Errorf("the key %q was made for Secret %s: %t", label, secret, !want)
		}
	}
}

// Two renewals close together take no key from gateways that follow.
func TestWhenAFormerKeyIsIdle(t *testing.T) {
	k := formerKey{replaced: issuedAt}
	for after, want := range map[time.Duration]bool{0: false, time.Hour - time.Second: false, time.Hour: true, 24 * time.Hour: true} {
		if k.idle(issuedAt.Add(after)) != want {
			t.Errorf("idle after %s: %t", after, !want)
		}
	}
}

func TestTheListOfFormerKeysStaysShort(t *testing.T) {
	var many []formerKey
	for range 2 * mostFormer {
		many = append(many, formerKey{keypair.Reference{Pool: "a", Label: "web-ecdsa-p256-1-abcdefgh"}, issuedAt, ""})
	}
	const latest = "web-ecdsa-p256-2-abcdefgh"
	many = append(many, formerKey{keypair.Reference{Pool: "a", Label: latest}, issuedAt, ""})
	s := state{Secret: &corev1.Secret{}}
	s.Secret.Name = "web-ecdsa-p256"
	s.Secret.Annotations = map[string]string{v1alpha1.AnnotationPreviousKeys: formatFormerKeys(many)}
	got, dropped := s.formerKeys(keypair.Reference{}, issuedAt)
	if len(got) != mostFormer || len(dropped) != mostFormer+1 || got[mostFormer-1].Label != latest {
		t.Errorf("%d keys, the last of them %+v", len(got), got[len(got)-1])
	}
}

func TestFormerKeysOfTamperedAnnotations(t *testing.T) {
	for value, want := range map[string]int{"": 0, "x": 0, "null": 0, `[{"uri":"pkcs11:object=web;type=private","replaced":"2030-01-02T03:04:05Z"}]`: 0,
		`[{"uri":"pkcs11:token=a;object=k;type=private","replaced":"2030-01-02T03:04:05Z"}]`: 1, `[{"uri":"pkcs11:token=a;object=k;type=private","replaced":"soon"}]`: 0} {
		if got := parseFormerKeys(value); len(got) != want {
			t.Errorf("%q: %+v", value, got)
		}
	}
}
