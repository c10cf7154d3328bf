//go:build integration

// Package samples tests the samples: the API server accepts each of them, and
// what they refer to is there.
package samples

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/testenv"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
	"qtls.dev/qtls/internal/version"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// base is the sample that the others build on.
const base = "quickstart.yaml"

func files(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.yaml")
	if err != nil || !slices.Contains(found, base) {
		t.Fatalf("samples are %v (%v)", found, err)
	}
	return found
}

func read(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := docs.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(u.Object) > 0 {
			objects = append(objects, u)
		}
	}
}

// restricted makes a namespace that takes restricted pods only.
func restricted(t *testing.T, c client.Client) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "samples-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := c.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}}
	if err := c.Create(t.Context(), account); err != nil { // no controller makes it here
		t.Fatal(err)
	}
	return namespace.Name
}

func TestTheAPIServerAcceptsEachSample(t *testing.T) {
	c := testenv.Client(t)
	namespace := restricted(t, c)
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			for _, o := range read(t, file) {
				o.SetNamespace(namespace)
				if err := c.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
}

// What the reference tables are measured with.
func TestTheBenchmarksOfTheDocumentationTakeLessThanAnHourEach(t *testing.T) {
	c := testenv.Client(t)
	namespace := restricted(t, c)
	for _, name := range []string{"gateway", "matrix", "sizes", "servers", "peers"} {
		for _, o := range read(t, "../../docs/benchmarks/"+name+".yaml") {
			o.SetNamespace(namespace)
			if err := c.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s.yaml: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
			if o.GetKind() != "QTLSBenchmark" {
				continue
			}
			b := into[v1alpha1.QTLSBenchmark](t, o)
			for _, p := range b.Spec.Peers {
				if p.Image != "" && p.Image != "ghcr.io/qtls-dev/qtls-nginx:"+version.Version {
					t.Errorf("%s.yaml: peer %s runs %s", name, p.Name, p.Image)
				}
			}
			if p := plan.Of(b.Spec, 1); p.Expected > p.Most || p.Most > time.Hour {
				t.Errorf("%s.yaml: it takes %s, and may take %s", name, p.Expected, p.Most)
			}
		}
	}
}

// The API server of this test enforces the restricted standard on pods, not on
// what makes them.
func TestPodTemplatesOfSamplesAreRestricted(t *testing.T) {
	c := testenv.Client(t)
	namespace := restricted(t, c)
	tried := 0
	for _, file := range files(t) {
		for _, o := range read(t, file) {
			if o.GetKind() != "Deployment" {
				continue
			}
			d := into[appsv1.Deployment](t, o)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: d.Name}, Spec: d.Spec.Template.Spec}
			if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Errorf("%s: pods of Deployment %s: %v", file, d.Name, err)
			}
			tried++
		}
	}
	if tried == 0 {
		t.Error("no sample has a Deployment")
	}
}

func into[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	v := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, v, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return v
}

func TestWhatASampleRefersToIsThere(t *testing.T) {
	for _, file := range files(t) {
		objects := read(t, file)
		if file != base {
			objects = append(objects, read(t, base)...)
		}
		there := map[string]bool{}
		for _, o := range objects {
			there[o.GetKind()+" "+o.GetName()] = true
			if o.GetKind() == "PQCCertificate" {
				for _, algorithm := range into[v1alpha1.PQCCertificate](t, o).Spec.Algorithms {
					there["Secret "+o.GetName()+"-"+strings.ToLower(string(algorithm))] = true
				}
			}
		}
		for _, o := range objects {
			for _, reference := range references(t, o) {
				if !there[reference] {
					t.Errorf("%s: %s %s refers to %s, which is in neither %s nor %s", file, o.GetKind(), o.GetName(), reference, file, base)
				}
			}
		}
	}
}

// references are the objects that an object of ours names, as "Kind name".
func references(t *testing.T, o *unstructured.Unstructured) []string {
	t.Helper()
	found := map[string]bool{}
	authorities := func(refs []v1alpha1.CAReference) {
		for _, r := range refs {
			found[string(r.Kind)+" "+r.Name] = true
		}
	}
	switch o.GetKind() {
	case "PQCCertificate":
		c := into[v1alpha1.PQCCertificate](t, o)
		issuer := c.Spec.IssuerRef
		if issuer.Kind == "" {
			issuer.Kind = "PQCIssuer"
		}
		if pool := c.Spec.KeyStorage.HSMRef; pool != nil {
			found["HSMPool "+pool.Name] = true
		}
		found[issuer.Kind+" "+issuer.Name] = true
	case "PQCIssuer":
		if ca := into[v1alpha1.PQCIssuer](t, o).Spec.CA; ca != nil {
			for _, s := range ca.SecretRefs {
				found["Secret "+s.Name] = true
			}
		}
	case "HSMPool":
		for _, m := range into[v1alpha1.HSMPool](t, o).Spec.Members {
			l, ok := hsmpool.LibraryOf(m)
			if !ok {
				continue
			}
			found["Secret "+l.Token.PINSecretRef.Name] = true
			for _, f := range l.Module.Files {
				if f.SecretRef != nil {
					found["Secret "+f.SecretRef.Name] = true
				}
				if f.ConfigMapRef != nil {
					found["ConfigMap "+f.ConfigMapRef.Name] = true
				}
			}
		}
	case "QTLSGateway":
		g := into[v1alpha1.QTLSGateway](t, o)
		if pool := g.Spec.HSMRef; pool != nil {
			found["HSMPool "+pool.Name] = true
		}
		if e := g.Spec.SessionResumption.Store.External; e != nil {
			found["Secret "+e.CredentialsRef.Name], found["Secret "+e.AgentCredentialsRef.Name] = true, true
			authorities(e.CARefs)
		}
		for _, l := range g.Spec.Listeners {
			for _, c := range l.CertificateRefs {
				if c.Kind == "" {
					c.Kind = v1alpha1.CertificateKindPQCCertificate
				}
				found[string(c.Kind)+" "+c.Name] = true
			}
			for _, b := range l.Backends {
				found["Service "+b.Name] = true
				if b.TLS != nil {
					authorities(b.TLS.CARefs)
				}
			}
			if l.ClientAuthentication != nil {
				authorities(l.ClientAuthentication.CARefs)
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestSamplesRunTheImagesOfThisVersion(t *testing.T) {
	const registry = "ghcr.io/qtls-dev/"
	images := 0
	for _, file := range files(t) {
		for _, o := range read(t, file) {
			pod := corev1.PodSpec{}
			switch o.GetKind() {
			case "Deployment":
				pod = into[appsv1.Deployment](t, o).Spec.Template.Spec
			case "Pod":
				pod = into[corev1.Pod](t, o).Spec
			}
			for _, container := range pod.Containers {
				images++
				name, _ := strings.CutPrefix(container.Image, registry)
				if !slices.Contains([]string{"qtls-echo:" + version.Version, "qtls-redis:" + version.Version, "qtls-k6:" + version.Version, "qtls-client:trixie"}, name) {
					t.Errorf("%s: %s runs %s", file, o.GetName(), container.Image)
				}
			}
		}
	}
	if images == 0 {
		t.Error("no sample runs an image")
	}
}

// The users of the sample's own store may do what operator and agents have to,
// with the passwords that the gateway names, and an agent no more.
func TestTheUsersOfTheExternalStoreAreEnough(t *testing.T) {
	const file = "external-store.yaml"
	const ring, root = "0123456789abcdef", "root-ecdsa-p256"
	objects := resolve.Objects{Secrets: map[string]*corev1.Secret{}}
	var g *v1alpha1.QTLSGateway
	for _, o := range read(t, file) {
		switch o.GetKind() {
		case "Secret":
			secret := into[corev1.Secret](t, o)
			secret.Data = map[string][]byte{}
			for k, v := range secret.StringData { // as the API server does
				secret.Data[k] = []byte(v)
			}
			objects.Secrets[secret.Name] = secret
		case "QTLSGateway":
			g = into[v1alpha1.QTLSGateway](t, o)
		}
	}
	server := storetest.Start(t, storetest.Users(string(objects.Secrets["ticket-store-config"].Data["users.acl"])))
	objects.Secrets[root] = &corev1.Secret{Data: map[string][]byte{"tls.crt": server.Connection(embedded.Agent).CA}}
	g.Spec.SessionResumption.Store.External.KeyPrefix = "qtls:" // the API's default
	store, problem := resolve.ExternalStore(g, objects)
	if problem != nil {
		t.Fatal(problem.Message)
	}
	open := func(c ticketstore.Connection) *ticketstore.Store {
		c.Addresses, c.ServerName = []string{server.Address()}, ""
		s, err := ticketstore.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	operator, agent := open(store.Operator), open(store.Agent)
	heard := make(chan string, 8)
	go agent.Follow(t.Context(), []string{ring}, func(ring string) { heard <- ring })
	hears := func(what string) {
		t.Helper()
		select {
		case <-heard:
		case <-time.After(2 * time.Minute):
			t.Fatalf("an agent does not hear of %s", what)
		}
	}
	hears("its connection")
	for epoch := range uint64(2) { // the second finds the first
		d := ticketstore.Document{Content: []byte("sealed"), Epoch: epoch + 1, ExpiresIn: time.Hour}
		if err := operator.Publish(t.Context(), ring, d); err != nil {
			t.Fatal(err)
		}
		hears("a new ring")
	}
	for name, s := range map[string]*ticketstore.Store{"operator": operator, "agent": agent} {
		if d, err := s.Read(t.Context(), ring); err != nil || d.Epoch != 2 {
			t.Errorf("%s reads epoch %d, %v", name, d.Epoch, err)
		}
	}
	d := ticketstore.Document{Content: []byte("sealed"), Epoch: 3, ExpiresIn: time.Hour}
	if err := agent.Publish(t.Context(), ring, d); !errors.Is(err, ticketstore.ErrPermission) {
		t.Errorf("an agent writes: %v", err)
	}

	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "session-resumption.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(objects.Secrets["ticket-store-config"].Data["users.acl"])) {
		if before, rights, ok := strings.Cut(line, "-keys "); ok && !strings.Contains(string(guide), rights) {
			t.Errorf("docs/session-resumption.md gives other rights than %q to %s", rights, before)
		}
	}
}
