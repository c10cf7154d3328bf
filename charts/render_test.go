//go:build chart

// Package charts tests the chart as its users meet it: through the helm command.
package charts

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const (
	release   = "qtls"
	namespace = "qtls-system"
	oldest    = "1.33.0" // Kubernetes that the chart accepts
)

// rendered are the objects that `helm template` printed, each decoded strictly:
// a field that its kind does not have fails the test.
type rendered struct {
	t       *testing.T
	objects map[string]runtime.Object
}

// render renders the chart with values in the form of a values file.
func render(t *testing.T, values string) rendered {
	t.Helper()
	return renderAs(t, release, values)
}

// renderAs renders the chart for a release of another name.
func renderAs(t *testing.T, release, values string) rendered {
	t.Helper()
	out, err := template(t, release, values)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	r := rendered{t, map[string]runtime.Object{}}
	for doc := range strings.SplitSeq(out, "\n---\n") {
		if doc = strings.TrimPrefix(doc, "---\n"); isEmpty(doc) {
			continue
		}
		o, key := decode(t, doc)
		if _, twice := r.objects[key]; twice {
			t.Errorf("%s is rendered twice", key)
		}
		r.objects[key] = o
	}
	return r
}

// refused renders the chart with values that must not be accepted, and returns
// what helm said.
func refused(t *testing.T, values string) string {
	t.Helper()
	out, err := template(t, release, values)
	if err == nil {
		t.Fatalf("accepted:\n%s", values)
	}
	return out
}

func template(t *testing.T, release, values string) (string, error) {
	t.Helper()
	helm := helmCommand(t, "template", release, "qtls", "--namespace", namespace, "--kube-version", oldest, "--values", "-")
	helm.Stdin = strings.NewReader(values)
	var stdout, stderr bytes.Buffer
	helm.Stdout, helm.Stderr = &stdout, &stderr
	if err := helm.Run(); err != nil {
		return stderr.String(), err
	}
	return stdout.String(), nil
}

func helmCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Fatal("HELM is not set: `make test-chart` sets it to the path of helm")
	}
	return exec.CommandContext(t.Context(), helm, args...)
}

func isEmpty(doc string) bool {
	for line := range strings.Lines(doc) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// foreign are kinds whose Go types are not at hand: decoded without a check.
var foreign = schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}

func decode(t *testing.T, doc string) (runtime.Object, string) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
		t.Fatalf("%v in:\n%s", err, doc)
	}
	key := meta.Kind + " " + meta.Name
	if meta.Namespace != "" {
		key = meta.Kind + " " + meta.Namespace + "/" + meta.Name
	}
	kind := meta.GroupVersionKind()
	if kind.GroupVersion() == foreign {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		return u, key
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	o, err := scheme.New(kind)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return o, key
}

// get is the object of a kind and name, which must be there.
func get[T runtime.Object](r rendered, key string) T {
	r.t.Helper()
	o, ok := r.objects[key].(T)
	if !ok {
		r.t.Fatalf("%s is not rendered", key)
	}
	return o
}

// count is the number of objects of a kind.
func (r rendered) count(kind string) int {
	n := 0
	for key := range r.objects {
		if strings.HasPrefix(key, kind+" ") {
			n++
		}
	}
	return n
}
