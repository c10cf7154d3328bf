//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// apply server-side applies a file of objects into the namespace, as `kubectl apply --server-side -n` does. What is to be
// replaced in it comes in pairs: the old text, and the new one.
func (n namespace) apply(file string, replace ...string) []*unstructured.Unstructured {
	n.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		n.Fatal(err)
	}
	var applied []*unstructured.Unstructured
	for documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(strings.NewReplacer(replace...).Replace(string(text))), 4096); ; {
		o := &unstructured.Unstructured{}
		err := documents.Decode(o)
		if errors.Is(err, io.EOF) {
			return applied
		}
		if err != nil {
			n.Fatalf("%s: %v", file, err)
		}
		if len(o.Object) == 0 || o.GetKind() == "Namespace" {
			continue
		}
		o.SetNamespace(n.name)
		if err := cluster.Apply(n.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("e2e"), client.ForceOwnership); err != nil {
			n.Fatalf("%s: apply %s %s: %v", file, o.GetKind(), o.GetName(), err)
		}
		applied = append(applied, o)
	}
}

// quickstart is the sample that the README shows.
const quickstart = "../config/samples/quickstart.yaml"

// The sample of the quickstart, as it is: a client that can gets X25519MLKEM768 and ML-DSA-65, any other ECDSA, on one
// port and name.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	start := time.Now()
	var g *v1alpha1.QTLSGateway
	for _, o := range n.apply(quickstart) {
		if o.GetKind() == "QTLSGateway" {
			g = &v1alpha1.QTLSGateway{}
			g.Namespace, g.Name = n.name, o.GetName()
		}
	}
	if g == nil {
		t.Fatalf("%s has no QTLSGateway", quickstart)
	}
	waitReady(t, g, forReady)
	result(t, "Ready %.1f s after apply", time.Since(start).Seconds())
	ca := n.give("ca.pem", n.trusted(g))
	listener := g.Spec.Listeners[0]
	r := request{address: address(g, listener.Port), name: string(listener.Hostnames[0]), ca: ca}
	n.waitServed(openssl35, r)
	for _, c := range allClients {
		got := n.mustServe(c, r)
		want := map[string][2]string{
			openssl35.name: {"X25519MLKEM768", "ML-DSA-65"}, curl35.name: {"X25519MLKEM768", "ML-DSA-65"},
			openssl30.name: {"X25519", "ECDSA-P256"}, curl30.name: {"", "ECDSA-P256"}, // which does not tell its group
			go126.name: {"X25519MLKEM768", "ECDSA-P256"}, go127.name: {"X25519MLKEM768", "ECDSA-P256"},
		}[c.name]
		if got.Group != want[0] || got.Algorithm != want[1] {
			t.Errorf("%s: got %s, want %v", c.name, got, want)
		}
		result(t, "%-19s | %s | pod %s", c.name, got, got.Pod)
	}
	if g.Status.Pods == "" || g.Status.Policy != "hybrid-v1 (Prefer)" || g.Status.CertificateAlgorithms != "ML-DSA-65,ECDSA-P256" {
		t.Errorf("the columns of `kubectl get qtlsgateway`: pods %q, policy %q, certificates %q", g.Status.Pods, g.Status.Policy, g.Status.CertificateAlgorithms)
	}
}

// trusted are the CAs that signed what a gateway serves: the ca.crt of its certificates' Secrets.
func (n namespace) trusted(g *v1alpha1.QTLSGateway) []byte {
	n.Helper()
	var all []byte
	for _, c := range g.Status.Certificates {
		s := &corev1.Secret{}
		if err := cluster.Get(n.Context(), client.ObjectKey{Namespace: n.name, Name: c.SecretName}, s); err != nil {
			n.Fatal(err)
		}
		if len(s.Data["ca.crt"]) == 0 {
			n.Fatalf("Secret %s has no ca.crt", s.Name)
		}
		all = append(all, s.Data["ca.crt"]...)
	}
	return all
}

// Every other sample becomes ready as it is, beside the quickstart's, on which they stand. That of a vendor's library
// says what it lacks: an image that only its user has.
func TestSamples(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	waitAll(t, n.apply(quickstart))
	files, err := filepath.Glob("../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples (%v)", err)
	}
	for _, file := range files {
		if file == quickstart {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			n := namespace{t, n.name}
			start := time.Now()
			objects := n.apply(file, "--every=1m", "--every=2s") // the session's summaries
			if filepath.Base(file) == "hsm-module.yaml" {
				luna := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "luna"}}
				tells(t, waitCondition(t, luna, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDaemonNotReady, forReady), "luna-luna-a-hsmd", "luna-luna-b-hsmd")
			} else {
				waitAll(t, objects)
			}
			result(t, "%d objects, as they shall be after %.1f s", len(objects), time.Since(start).Seconds())
			switch filepath.Base(file) {
			case "client-auth.yaml":
				n.partners()
			case "latency-session.yaml":
				n.sessionSums()
			}
			for _, o := range objects {
				remove(t, o)
			}
		})
	}
}

// sessionSums waits for a summary in the session's log that is of samples alone, and of no failures.
func (n namespace) sessionSums() {
	n.Helper()
	eventually(n.T, forReady, "the session has a summary without failures", func(ctx context.Context) (bool, string) {
		var text []byte
		for _, p := range n.pods(ctx, map[string]string{"app": "latency-session"}) {
			log, err := cluster.clientset.CoreV1().Pods(n.name).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err != nil {
				return false, err.Error()
			}
			text = append(text, log...)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, " p50 ") && !strings.Contains(line, " failed ") {
				result(n.T, "%s", strings.TrimSpace(line))
				return true, ""
			}
		}
		return false, string(text)
	})
}

// partners are let in with the certificates that the sample makes for them, and not with a server's.
func (n namespace) partners() {
	n.Helper()
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "partners"}}
	waitReady(n.T, g, forReady)
	r := request{address: address(g, 443), name: "partners.example.com", ca: n.give("partners.pem", n.trusted(g))}
	as := func(secret string) request {
		s := &corev1.Secret{}
		if err := cluster.Get(n.Context(), client.ObjectKey{Namespace: n.name, Name: secret}, s); err != nil {
			n.Fatal(err)
		}
		r := r
		r.cert, r.key = n.give(secret+".pem", s.Data[corev1.TLSCertKey]), n.give(secret+".key", s.Data[corev1.TLSPrivateKeyKey])
		return r
	}
	for _, secret := range []string{"partner-ml-dsa-65", "partner-ecdsa-p256"} {
		n.waitServed(openssl35, as(secret))
		result(n.T, "with the certificate of Secret %s: %s", secret, n.mustServe(openssl35, as(secret)))
	}
	n.mustRefuse(openssl35, r)
	n.mustRefuse(openssl35, as("partners-ml-dsa-65"))
}

// waitAll waits until those of the objects that have a condition Ready are, and Deployments have all their pods.
func waitAll(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		group, kind := o.GroupVersionKind().Group, o.GetKind()
		// A benchmark is not ready at some time: it runs, and other tests see to that.
		if (group != v1alpha1.GroupName || kind == "QTLSPolicy" || kind == "QTLSBenchmark") && group != "cert-manager.io" && kind != "Pod" && kind != "Deployment" {
			continue
		}
		eventually(t, forReady, kind+" "+o.GetName()+" is ready", func(ctx context.Context) (bool, string) {
			if ok, state := get(ctx, o); !ok {
				return false, state
			}
			if kind == "Deployment" {
				want, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
				available, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
				return available == want, fmt.Sprintf("%d of %d pods are available", available, want)
			}
			all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range all {
				if c, ok := c.(map[string]any); ok && c["type"] == v1alpha1.ConditionReady && c["status"] == "True" {
					return true, ""
				}
			}
			return false, fmt.Sprint(all)
		})
	}
}
