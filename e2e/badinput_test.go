//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// What cannot be meant does not get in at all, and the refusal says what to do.
func TestRefusedAtAdmission(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	changed := func(change func(*v1alpha1.Listener)) *v1alpha1.QTLSGateway {
		l := https("web", 443, "web.example")
		change(&l)
		return gateway("bad", l)
	}
	hostname := func(name v1alpha1.Hostname) *v1alpha1.QTLSGateway {
		return changed(func(l *v1alpha1.Listener) { l.Hostnames = []v1alpha1.Hostname{name} })
	}
	other := https("other", 443, "web.example")
	for name, c := range map[string]struct {
		gateway *v1alpha1.QTLSGateway
		says    []string
	}{
		"the same port and host name twice": {gateway("bad", https("web", 443, "web.example"), other), []string{"spec.listeners", "same port and host name"}},
		"two listeners for every name":      {gateway("bad", https("web", 443), https("other", 443)), []string{"spec.listeners", "same port and host name"}},
		"a host name with a new line":       {hostname("web.example\n  bind :80"), []string{"hostnames", "should match"}},
		"a host name with a quote":          {hostname(`web.example"`), []string{"hostnames", "should match"}},
		"a host name with a comment":        {hostname("web.example #"), []string{"hostnames", "should match"}},
		"a host name with a variable":       {hostname("${HOME}.example"), []string{"hostnames", "should match"}},
		"a host name with an expression":    {hostname("%[src].example"), []string{"hostnames", "should match"}},
		"a host name in upper case":         {hostname("WEB.example"), []string{"hostnames", "should match"}},
		"a wildcard inside":                 {hostname("a.*.example"), []string{"hostnames", "should match"}},
		"a listener name with a space":      {changed(func(l *v1alpha1.Listener) { l.Name = "a b" }), []string{"name", "should match"}},
		"a port of the agent":               {changed(func(l *v1alpha1.Listener) { l.Port = 8404 }), []string{"port", "8404", "agent"}},
		"a port out of range":               {changed(func(l *v1alpha1.Listener) { l.Port = 70000 }), []string{"port", "70000", "65535"}},
		"HTTPS without a certificate":       {changed(func(l *v1alpha1.Listener) { l.CertificateRefs = nil }), []string{"certificateRefs", "needed"}},
		"passthrough with a certificate":    {changed(func(l *v1alpha1.Listener) { l.Protocol = v1alpha1.ProtocolTLSPassthrough }), []string{"certificateRefs", "TLSPassthrough"}},
		"an unknown protocol":               {changed(func(l *v1alpha1.Listener) { l.Protocol = "HTTP" }), []string{"protocol", "HTTPS"}},
		"a backend whose name nobody may verify": {changed(func(l *v1alpha1.Listener) {
			l.Backends[0].TLS = &v1alpha1.BackendTLS{Hostname: "*.example", CARefs: []v1alpha1.CAReference{{Name: "x"}}}
		}), []string{"hostname", "wildcard"}},
		"no listener": {gateway("bad"), []string{"spec.listeners"}},
	} {
		message := n.refused(c.gateway)
		for _, word := range c.says {
			if !strings.Contains(message, word) {
				t.Errorf("%s: the refusal does not name %q: %s", name, word, message)
			}
		}
		result(t, "%s: %s", name, strings.Join(strings.Fields(message), " "))
	}
}

// What is wrong only in its context becomes a condition that says what to do, and what was served is served on.
func TestLastGoodConfigurationKeepsServing(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	n.startEcho("echo", 1, "")
	good := a.classical.issue(t, ecdsaP256, "web.example")
	n.create(good.secret(t, "web"))
	listener := https("web", 443, "web.example")
	listener.CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "web"}}
	g := gateway("steady", listener)
	n.create(g)
	waitReady(t, g, forReady)
	r := request{address: address(g, 443), name: "web.example", ca: ca}
	n.waitServed(go126, r)
	load := n.startLoad(r, 25, 1)
	spec := g.Spec.DeepCopy()

	mismatched := good.secret(t, "mismatched")
	mismatched.Data[corev1.TLSPrivateKeyKey] = a.classical.issue(t, ecdsaP256, "web.example").keyPEM(t)
	garbage := good.secret(t, "garbage")
	garbage.Data[corev1.TLSCertKey] = []byte("not a certificate")
	n.create(mismatched, garbage)
	secretRef := func(name string) func(*v1alpha1.QTLSGateway) {
		return func(g *v1alpha1.QTLSGateway) { g.Spec.Listeners[0].CertificateRefs[0].Name = name }
	}
	for _, c := range []struct {
		name      string
		change    func(*v1alpha1.QTLSGateway)
		condition string
		reason    string
		says      []string
	}{
		{"a Secret that does not exist", secretRef("nowhere"), v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonCertificateNotFound, []string{"listeners[web].certificateRefs", "nowhere", "create it"}},
		{"a key that is not the certificate's", secretRef("mismatched"), v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonKeyMismatch, []string{"listeners[web].certificateRefs", "mismatched", "tls.key"}},
		{"a certificate that does not parse", secretRef("garbage"), v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonCertificateInvalid, []string{"listeners[web].certificateRefs", "garbage", "tls.crt"}},
		{"a PQCCertificate that does not exist", func(g *v1alpha1.QTLSGateway) {
			g.Spec.Listeners[0].CertificateRefs[0] = v1alpha1.CertificateReference{Name: "nowhere"}
		}, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonCertificateNotFound, []string{"PQCCertificate", "nowhere"}},
		{"a client CA that does not exist", func(g *v1alpha1.QTLSGateway) {
			g.Spec.Listeners[0].ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: []v1alpha1.CAReference{{Name: "nowhere"}}}
		}, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonAuthorityNotFound, []string{"clientAuthentication.caRefs", "nowhere", "ca.crt"}},
		// Nor do pods leave their backends, or clients the port. (The backend is the same, under another name of its port.)
		{"a Secret that does not exist, another port and another backend", func(g *v1alpha1.QTLSGateway) {
			secretRef("nowhere")(g)
			g.Spec.Listeners[0].Port = 8443
			g.Spec.Listeners[0].Backends = []v1alpha1.BackendReference{{Name: "echo", Port: intstr.FromInt32(80)}}
		}, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonCertificateNotFound, []string{"listeners[web].certificateRefs", "nowhere"}},
		{"a policy that does not exist", func(g *v1alpha1.QTLSGateway) { g.Spec.PolicyRef.Name = "nowhere" }, v1alpha1.ConditionAccepted, v1alpha1.ReasonPolicyNotFound, []string{"spec.policyRef.name", "nowhere", "qtlspolicies"}},
		{"a policy that accepts none of the certificates", func(g *v1alpha1.QTLSGateway) {
			g.Spec.PolicyRef = v1alpha1.PolicyReference{Name: "cnsa2-v1", Mode: v1alpha1.PolicyModeRequire}
		}, v1alpha1.ConditionAccepted, v1alpha1.ReasonCertificateAgainstPolicy, []string{"cnsa2-v1", "ECDSA-P256", "Prefer"}},
	} {
		update(t, g, func(g *v1alpha1.QTLSGateway) { spec.DeepCopyInto(&g.Spec); c.change(g) })
		message := waitCondition(t, g, c.condition, metav1.ConditionFalse, c.reason, forChange)
		tells(t, message, c.says...)
		ready := condition(g, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse {
			t.Errorf("%s: the gateway is Ready although its spec is not served:\n%s", c.name, describe(g))
		}
		got := n.mustServe(go126, r)
		if got.Serial != good.serial() {
			t.Errorf("%s: serial number %s is served, want %s", c.name, got.Serial, good.serial())
		}
		result(t, "%s: %s=False, %s: %s; still served: %s", c.name, c.condition, c.reason, message, got)
		update(t, g, func(g *v1alpha1.QTLSGateway) { spec.DeepCopyInto(&g.Spec) })
		waitReady(t, g, forChange)
	}

	// A Secret that goes bad after it was served.
	secret := good.secret(t, "web")
	secret.Namespace = n.name
	update(t, secret, func(s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = mismatched.Data[corev1.TLSPrivateKeyKey] })
	message := waitCondition(t, g, v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonKeyMismatch, forChange)
	if got := n.mustServe(go126, r); got.Serial != good.serial() {
		t.Errorf("serial number %s is served, want %s", got.Serial, good.serial())
	}
	result(t, "a Secret whose key was swapped: KeyMismatch: %s; still served", message)
	update(t, secret, func(s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = good.keyPEM(t) })
	waitReady(t, g, forChange)

	// A Secret that is deleted: pods keep what they have.
	remove(t, secret)
	waitCondition(t, g, v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotFound, forChange)
	if got := n.mustServe(go126, r); got.Serial != good.serial() {
		t.Errorf("serial number %s is served, want %s", got.Serial, good.serial())
	}
	n.create(good.secret(t, "web"))
	waitReady(t, g, forChange)

	s := n.stop(load)
	result(t, "all the while: %s", s)
	if s.Failed > 0 {
		t.Errorf("connections failed: %s", s)
	}

	// An unknown backend does not keep the rest of the spec from being served.
	for _, c := range []struct{ service, port, reason string }{
		{"nowhere", "http", v1alpha1.ReasonBackendNotFound},
		{"echo", "nowhere", v1alpha1.ReasonBackendPortNotFound},
	} {
		update(t, g, func(g *v1alpha1.QTLSGateway) {
			spec.DeepCopyInto(&g.Spec)
			g.Spec.Listeners[0].Backends = []v1alpha1.BackendReference{backend(c.service, c.port)}
		})
		message := waitCondition(t, g, v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, c.reason, forChange)
		tells(t, message, "listeners[web].backends[0]", "nowhere")
		eventually(t, forChange, "a listener without a backend answers 503", func(context.Context) (bool, string) {
			got := openssl30.send(n, r)
			return got.Status == 503, fmt.Sprintf("%s, status %d", got, got.Status)
		})
		result(t, "backend %s:%s: %s: %s; requests get 503", c.service, c.port, c.reason, message)
	}
	update(t, g, func(g *v1alpha1.QTLSGateway) { spec.DeepCopyInto(&g.Spec) })
	waitReady(t, g, forChange)
	n.waitServed(go126, r)

	// One Secret of two is deleted, and with it the last pod that had it: the listener that is complete is served.
	second := listener
	second.Name, second.Hostnames = "second", []v1alpha1.Hostname{"second.example"}
	second.CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "second"}}
	secondSecret := a.classical.issue(t, ecdsaP256, "second.example").secret(t, "second")
	n.create(secondSecret.DeepCopy())
	update(t, g, func(g *v1alpha1.QTLSGateway) { g.Spec.Listeners = append(g.Spec.Listeners, second) })
	waitReady(t, g, forChange)
	n.waitServed(go126, request{address: r.address, name: "second.example", ca: ca})
	gone := secondSecret.DeepCopy()
	gone.Namespace = n.name
	remove(t, gone)
	waitCondition(t, g, v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotFound, forChange)
	former := n.gatewayPods(g)[0]
	remove(t, &former, client.GracePeriodSeconds(0))
	start := time.Now()
	eventually(t, forReady, "another pod serves without it", func(context.Context) (bool, string) {
		pods := n.gatewayPods(g)
		return len(pods) == 1 && pods[0].UID != former.UID && isReady(&pods[0]), fmt.Sprintf("%d pods", len(pods))
	})
	n.waitServed(go126, r)
	result(t, "one Secret of two is deleted, and the pod: the other listener is served %.1f s later", time.Since(start).Seconds())
	n.create(secondSecret.DeepCopy())
	waitReady(t, g, forChange)
	n.waitServed(go126, request{address: r.address, name: "second.example", ca: ca})
}

// A certificate that cannot be issued says why; one that is denied, too.
func TestCertificatesThatAreNotIssued(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.create(certificate("orphan", dual, "web.example")) // its issuer "ca" does not exist
	orphan := &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "orphan"}}
	message := waitCondition(t, orphan, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonIssuerNotFound, forChange)
	tells(t, message, "ca", "PQCIssuer")
	result(t, "an issuer that does not exist: %s", message)

	n.create(caIssuer("broken", "nowhere"))
	issuer := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "broken"}}
	message = waitCondition(t, issuer, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, forChange)
	tells(t, message, "nowhere")
	result(t, "an issuer without its Secret: %s", message)

	leaf := newCA(t, "Some CA", ecdsaP256).issue(t, ecdsaP256, "leaf.example")
	n.create(leaf.secret(t, "leaf"), caIssuer("leaf", "leaf"))
	issuer = &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "leaf"}}
	message = waitCondition(t, issuer, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotAnAuthority, forChange)
	tells(t, message, "leaf")
	result(t, "an issuer whose certificate is no CA: %s", message)

	// Both families are asked for, and only one authority is there.
	classical := newCA(t, "Classical only", ecdsaP256)
	n.create(classical.secret(t, "classical"), caIssuer("ca", "classical"))
	eventually(t, forChange, "a certificate whose issuer lacks the authority of one family says so", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, orphan); !ok {
			return false, state
		}
		c := condition(orphan, v1alpha1.ConditionReady)
		return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "ML-DSA-65") && strings.Contains(c.Message, "no authority for PostQuantum keys"), describe(orphan)
	})
	result(t, "an issuer without an authority of the family: %s: %s", condition(orphan, v1alpha1.ConditionReady).Reason, condition(orphan, v1alpha1.ConditionReady).Message)

	// A Secret of the name that is somebody else's is not written over.
	mine := classical.issue(t, ecdsaP256, "mine.example").secret(t, v1alpha1.CertificateSecretName("taken", ecdsaP256))
	n.create(mine, certificate("taken", []v1alpha1.KeyAlgorithm{ecdsaP256}, "web.example"))
	taken := &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "taken"}}
	message = waitCondition(t, taken, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretNotOwned, forChange)
	tells(t, message, mine.Name)
	result(t, "a Secret that is somebody else's: %s", message)
	now := &corev1.Secret{}
	if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(mine), now); err != nil || string(now.Data[corev1.TLSCertKey]) != string(mine.Data[corev1.TLSCertKey]) {
		t.Errorf("the Secret was changed (%v)", err)
	}
	remove(t, mine)
	waitReady(t, taken, forReady)
}
