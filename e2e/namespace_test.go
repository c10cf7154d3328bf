//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
)

// namespace is a test's own, where only restricted pods may run. Its name is also that of the test's folder in the
// clients' pods.
type namespace struct {
	*testing.T
	name string
}

// newNamespace makes one that goes when the test ends; if the test failed, what was in it is written down first.
func newNamespace(t *testing.T) namespace {
	t.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		Annotations:  map[string]string{"qtls.dev/test": t.Name()},
	}}
	if err := cluster.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	n := namespace{t, o.Name}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), forReady)
		defer cancel()
		if t.Failed() {
			dump(ctx, t, n.name)
		}
		if err := client.IgnoreNotFound(cluster.Delete(ctx, o)); err != nil {
			t.Errorf("namespace %s: %v", n.name, err)
		}
	})
	return n
}

// create puts objects into the namespace.
func (n namespace) create(objects ...client.Object) {
	n.Helper()
	for _, o := range objects {
		o.SetNamespace(n.name)
		if err := cluster.Create(n.Context(), o); err != nil {
			n.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// refused tries to create an object and returns why the API does not let it.
func (n namespace) refused(o client.Object) string {
	n.Helper()
	o.SetNamespace(n.name)
	err := cluster.Create(n.Context(), o)
	if err == nil {
		n.Fatalf("%T %s was let in", o, o.GetName())
	}
	if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) {
		n.Fatalf("%T %s: refused for another reason: %v", o, o.GetName(), err)
	}
	return err.Error()
}

// update changes an object that is there.
func update[O client.Object](t *testing.T, o O, change func(O)) {
	t.Helper()
	eventually(t, forChange, fmt.Sprintf("%T %s is updated", o, o.GetName()), func(ctx context.Context) (bool, string) {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, err.Error()
		}
		change(o)
		err := cluster.Update(ctx, o)
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatalf("update %T %s: %v", o, o.GetName(), err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

// remove deletes an object.
func remove(t *testing.T, o client.Object, options ...client.DeleteOption) {
	t.Helper()
	if err := cluster.Delete(t.Context(), o, options...); err != nil {
		t.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
}

// dump writes a namespace's objects and logs, and the operator's log, into the folder for artifacts. It never writes a
// Secret.
func dump(ctx context.Context, t *testing.T, name string) {
	dir := filepath.Join(artifacts, strings.ReplaceAll(t.Name(), "/", "_")+"-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Log(err)
		return
	}
	t.Logf("objects and logs are in %s", dir)
	write := func(file string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			t.Log(err)
		}
	}
	for file, list := range map[string]client.ObjectList{
		"gateways.yaml": &v1alpha1.QTLSGatewayList{}, "certificates.yaml": &v1alpha1.PQCCertificateList{}, "issuers.yaml": &v1alpha1.PQCIssuerList{},
		"hsmpools.yaml": &v1alpha1.HSMPoolList{}, "benchmarks.yaml": &v1alpha1.QTLSBenchmarkList{},
		"pods.yaml": &corev1.PodList{}, "services.yaml": &corev1.ServiceList{}, "configmaps.yaml": &corev1.ConfigMapList{}, "events.yaml": &corev1.EventList{},
	} {
		if err := cluster.List(ctx, list, client.InNamespace(name)); err != nil {
			t.Logf("%s: %v", file, err)
			continue
		}
		if text, err := yaml.Marshal(list); err == nil {
			write(file, text)
		}
	}
	for _, ns := range []string{name, systemNamespace} {
		var pods corev1.PodList
		if err := cluster.List(ctx, &pods, client.InNamespace(ns)); err != nil {
			t.Log(err)
		}
		for _, p := range pods.Items {
			for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
				for _, previous := range []bool{false, true} {
					log, err := cluster.clientset.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{Container: c.Name, Previous: previous}).DoRaw(ctx)
					if err != nil {
						continue // most containers have no previous run
					}
					write(fmt.Sprintf("log-%s-%s-previous-%v.txt", p.Name, c.Name, previous), log)
				}
			}
		}
	}
}

// warnings are what the API server says beside its answers.
type warnings []string

// HandleWarningHeader collects a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// dryRunEnforce asks what enforcing the restricted pod security standard in a namespace would do to the pods there: the
// API server answers with a warning for each that would not be let in.
func dryRunEnforce(ctx context.Context, name string, w *warnings) error {
	config := *cluster.config
	config.WarningHandler = w
	c, err := client.New(&config, client.Options{Scheme: cluster.Scheme()})
	if err != nil {
		return err
	}
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	return c.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch), client.DryRunAll)
}
