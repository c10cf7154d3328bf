package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// What is listed past the cache is what the cache has, where a Role in each of
// the served namespaces is all that the operator has.
func TestWhichNamespacesAreServed(t *testing.T) {
	for watched, want := range map[string][]string{
		"":                  nil,
		"one":               {"one", "qtls-system"},
		"two, one":          {"one", "qtls-system", "two"},
		"qtls-system, zero": {"qtls-system", "zero"},
	} {
		o := options{namespace: "qtls-system", watchNamespaces: watched}
		if got := served(o); !slices.Equal(got, want) {
			t.Errorf("--watch-namespaces=%q: %q, want %q", watched, got, want)
		}
		c, err := cacheFor(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(c.DefaultNamespaces)); !slices.Equal(got, want) {
			t.Errorf("--watch-namespaces=%q: the cache is of %q, want %q", watched, got, want)
		}
	}
}

// kept is an object, given as YAML, as the cache keeps it.
func kept[T any](t *testing.T, text string) (*T, string) {
	t.Helper()
	c, err := cacheFor(options{namespace: "qtls-system"})
	if err != nil {
		t.Fatal(err)
	}
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DefaultTransform(o); err != nil {
		t.Fatal(err)
	}
	out, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return o, string(out)
}

// A Secret that kubectl apply has written has its content in an annotation, too.
func TestNoSecretsContentIsInItsMetadata(t *testing.T) {
	o, text := kept[metav1.PartialObjectMetadata](t, `
metadata:
  name: shop-tls
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{"data":{"tls.key":"c2VjcmV0"}}'
    qtls.dev/renew: now
  managedFields: [{manager: kubectl, operation: Apply}]
`)
	if strings.Contains(text, "c2VjcmV0") || strings.Contains(text, "managedFields") || len(o.Annotations) != 1 || o.Annotations["qtls.dev/renew"] != "now" {
		t.Error(text)
	}
}

func TestOfOthersCertificateRequestsLittleIsKept(t *testing.T) {
	const request, controlled = `
metadata:
  name: shop-1
  annotations: {cert-manager.io/private-key-secret-name: shop-key}
%s
spec:
  issuerRef: {group: %s, kind: Issuer, name: ca}
  request: cmVxdWVzdA==
status:
  certificate: Y2VydGlmaWNhdGU=
  ca: Y2E=
  conditions: [{type: Ready, status: "True", reason: Issued, message: m}]
`, `  ownerReferences: [{apiVersion: qtls.dev/v1alpha1, kind: PQCCertificate, name: shop, uid: "1", controller: true}]`
	for _, c := range []struct {
		name, owner, group string
		whole              bool
	}{
		{"to an issuer of ours", "", "qtls.dev", true},
		{"for a PQCCertificate", controlled, "cert-manager.io", true},
		{"somebody else's", "", "cert-manager.io", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cr, text := kept[cmapi.CertificateRequest](t, strings.NewReplacer("%s\nspec", c.owner+"\nspec", "%s", c.group).Replace(request))
			whole := len(cr.Spec.Request) > 0 && len(cr.Status.Certificate) > 0 && len(cr.Status.CA) > 0 && len(cr.Annotations) > 0
			empty := len(cr.Spec.Request) == 0 && len(cr.Status.Certificate) == 0 && len(cr.Status.CA) == 0 && len(cr.Annotations) == 0
			if whole != c.whole || empty == c.whole || len(cr.Status.Conditions) != 1 {
				t.Error(text)
			}
		})
	}
}

// The cache tells of what is gone with a notice, in place of an object.
func TestANoticeIsLeftAsItIs(t *testing.T) {
	notice := toolscache.DeletedFinalStateUnknown{Key: "shop/web", Obj: &corev1.Secret{}}
	if got, err := slim(notice); err != nil || got != any(notice) {
		t.Errorf("%v, %v", got, err)
	}
}
