//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// renew asks for new certificates and waits until they are issued.
func renew(t *testing.T, n namespace, name, value string) {
	t.Helper()
	c := &v1alpha1.PQCCertificate{}
	c.Namespace, c.Name = n.name, name
	update(t, c, func(c *v1alpha1.PQCCertificate) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[v1alpha1.AnnotationRenew] = value
	})
	eventually(t, forChange, "the certificate is renewed", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, c); !ok {
			return false, state
		}
		return c.Status.Renewed == value && condition(c, v1alpha1.ConditionReady) != nil && condition(c, v1alpha1.ConditionReady).Status == "True", describe(c)
	})
}

// serialOf is the serial number that a PQCCertificate's status has for an algorithm.
func serialOf(t *testing.T, c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm) string {
	t.Helper()
	if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	for _, issued := range c.Status.Certificates {
		if issued.Algorithm == algorithm {
			return issued.SerialNumber
		}
	}
	t.Fatalf("PQCCertificate %s has no %s certificate", c.Name, algorithm)
	return ""
}

// waitSerial waits until a client is served the certificate of a serial number.
func (n namespace) waitSerial(c tlsClient, r request, serial string, within time.Duration) {
	n.Helper()
	eventually(n.T, within, fmt.Sprintf("%s gets the certificate %s from %s", c.name, serial, r.address), func(context.Context) (bool, string) {
		got := c.send(n, r)
		return got.Served && got.Serial == serial, fmt.Sprintf("%s, serial number %s", got, got.Serial)
	})
}

// serials are what each pod of a gateway serves, asked directly.
func (n namespace) serials(g *v1alpha1.QTLSGateway, r request) map[string][2]string {
	n.Helper()
	served := map[string][2]string{}
	for _, p := range n.gatewayPods(g) {
		r.address = join(p.Status.PodIP, 443)
		served[p.Name] = [2]string{n.mustServe(openssl35, r).Serial, n.mustServe(go127, r).Serial}
	}
	return served
}

// The least of each, and how long there is something going on, so that the connections come while it does.
const (
	rollouts    = 3
	rotations   = 10
	connections = 10000
	unrest      = 95 * time.Second
)

// No new connection fails while pods are replaced, certificates rotated and configurations reloaded. The clients verify
// chain and name, ask for a whole handshake and an answer each time, and never try again.
func zeroFailedHandshakes(t *testing.T) {
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	echo := n.startEcho("echo", 2, "")
	n.create(certificate("web", dual, "web.example"))
	g := gateway("steady", https("web", 443, "web.example"))
	g.Spec.Replicas = ptr.To[int32](2)
	n.create(g)
	n.waitPods(echo, 2)
	waitReady(t, g, forReady)
	r := request{address: address(g, 443), name: "web.example", ca: ca}
	n.waitServed(openssl35, r)
	n.waitServed(go127, r)
	before := n.serials(g, r)

	classical := n.startLoad(r, 110, connections)
	postQuantum := n.startCurlLoad(r, 3, 20)
	start := time.Now()

	// Rotations go on beside the rollouts: a pod starts with one certificate and serves the next.
	rotated := make(chan int, 1)
	stopRotating := make(chan struct{})
	go func() {
		done := 0
		defer func() { rotated <- done }()
		for {
			select {
			case <-stopRotating:
				if done >= rotations {
					return
				}
			case <-t.Context().Done():
				return
			default:
			}
			if err := renewOnce(t.Context(), n.name, "web", fmt.Sprintf("rotation-%d", done+1)); err != nil {
				t.Errorf("rotation %d: %v", done+1, err)
				return
			}
			done++
			select {
			case <-time.After(3 * time.Second):
			case <-t.Context().Done():
				return
			}
		}
	}()
	reloads, turn := 0, 0
	for ; turn < rollouts || time.Since(start) < unrest; turn++ {
		pods := n.podUIDs(g)
		replacePods(t, g, turn+1)
		n.waitReplaced(g, pods, forReady)
		t.Logf("%s: rollout %d is done", time.Since(start).Round(time.Second), turn+1)
		// A configuration that needs a reload, and back: with another name, and another backend, which is the same Service
		// under another name of its port. Pods that have not taken it up yet go on with theirs.
		other := https("web", 443, "web.example", v1alpha1.Hostname(fmt.Sprintf("turn-%d.example", turn)))
		other.Backends = []v1alpha1.BackendReference{{Name: "echo", Port: intstr.FromInt32(80)}}
		for _, listener := range []v1alpha1.Listener{other, https("web", 443, "web.example")} {
			revision := g.Status.Revision
			update(t, g, func(g *v1alpha1.QTLSGateway) { g.Spec.Listeners = []v1alpha1.Listener{listener} })
			eventually(t, forChange, "every pod runs the new configuration", func(ctx context.Context) (bool, string) {
				if ok, state := get(ctx, g); !ok {
					return false, state
				}
				c := condition(g, v1alpha1.ConditionProgrammed)
				return c != nil && c.Status == "True" && g.Status.Revision != revision, describe(g)
			})
			reloads++
		}
	}
	close(stopRotating)
	rotationsDone := <-rotated

	c := &v1alpha1.PQCCertificate{}
	c.Namespace, c.Name = n.name, "web"
	latest := [2]string{serialOf(t, c, mlDSA65), serialOf(t, c, ecdsaP256)}
	for _, p := range n.gatewayPods(g) {
		r := request{address: join(p.Status.PodIP, 443), name: r.name, ca: ca}
		n.waitSerial(openssl35, r, latest[0], forChange)
		n.waitSerial(go127, r, latest[1], forChange)
	}
	took := time.Since(start)
	pq, cl := n.stop(postQuantum), n.stop(classical)
	after := n.serials(g, r)
	for pod, s := range before {
		result(t, "before, %s: ML-DSA-65 %s, ECDSA-P256 %s", pod, s[0], s[1])
	}
	for pod, s := range after {
		result(t, "after, %s: ML-DSA-65 %s, ECDSA-P256 %s", pod, s[0], s[1])
		if s != latest {
			t.Errorf("pod %s serves %v, want the latest %v", pod, s, latest)
		}
	}
	for pod, s := range before {
		if s[0] == latest[0] || s[1] == latest[1] {
			t.Errorf("pod %s served %v before, which was to be rotated", pod, s)
		}
		if _, still := after[pod]; still {
			t.Errorf("pod %s was to be replaced", pod)
		}
	}
	result(t, "Go 1.27 (ECDSA chain): %s", cl)
	result(t, "curl on OpenSSL 3.5 (ML-DSA chain): %s", pq)
	result(t, "%d new connections, %d failed, over %d rollouts of 2 pods, %d rotations of both certificates (%d ECDSA serial numbers seen by clients), %d changes of the configuration, in %.0f s",
		cl.Total+pq.Total, cl.Failed+pq.Failed, turn, rotationsDone, len(cl.BySerial), reloads, took.Seconds())
	if cl.Failed+pq.Failed > 0 {
		t.Error("connections failed")
	}
	if total := cl.Total + pq.Total; total < connections {
		t.Errorf("%d connections, want at least %d", total, connections)
	}
	if rotationsDone < rotations || len(cl.BySerial) < rotations {
		t.Errorf("%d rotations, %d serial numbers seen, want at least %d", rotationsDone, len(cl.BySerial), rotations)
	}
	if cl.ByAlgorithm["ECDSA-P256"] != cl.Succeeded {
		t.Errorf("Go 1.27 was given other certificates than ECDSA: %v", cl.ByAlgorithm)
	}
}

// renewOnce asks for a renewal and waits for it, without a test to fail.
func renewOnce(ctx context.Context, namespace, name, value string) error {
	ctx, cancel := context.WithTimeout(ctx, forChange)
	defer cancel()
	c := &v1alpha1.PQCCertificate{}
	c.Namespace, c.Name = namespace, name
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationRenew, value)
	if err := cluster.Patch(ctx, c, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		return err
	}
	state := poll(ctx, func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, c); !ok {
			return false, state
		}
		ready := condition(c, v1alpha1.ConditionReady)
		return c.Status.Renewed == value && ready != nil && ready.Status == "True", describe(c)
	})
	if state != "" {
		return fmt.Errorf("not within %s; last: %s", forChange, state)
	}
	return nil
}

// The control: pods that go without letting go of anything do lose connections, and the same load sees it.
func controlWithoutDrain(t *testing.T) {
	n := newNamespace(t)
	g, r := faultyGateway(n, "control", 2)
	update(t, g, func(g *v1alpha1.QTLSGateway) {
		g.Spec.Drain = v1alpha1.DrainSpec{DelaySeconds: ptr.To[int32](0), TimeoutSeconds: ptr.To[int32](5)}
	})
	waitReady(t, g, forReady)
	r.patience = 5 * time.Second // it is to lose connections
	load := n.startLoad(r, 100, 1000)
	for range 3 {
		pods := n.gatewayPods(g)
		before := n.podUIDs(g)
		for i := range pods {
			remove(t, &pods[i], client.GracePeriodSeconds(0))
		}
		n.waitReplaced(g, before, forReady)
	}
	s := n.stop(load)
	result(t, "pods deleted three times without drain or grace: %s", s)
	if s.Failed == 0 {
		t.Error("no connection failed although pods went without a drain: the test of zero failures could not fail, either")
	}
}
