//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/keypair"
)

// A gateway whose private keys lie in a token of kryoptic, behind two hsmds: they sign each handshake, and nothing else
// has the keys. The hsmds are killed, hang and are slow, certificates rotate and HAProxy is reloaded, and configurations
// are wrong, while clients connect.
func TestHSM(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	v := n.startVault()
	echo := n.startEcho("echo", 1, "")
	pool := v.pool("vault", v.member("a", portA), v.member("b", portB))
	n.create(pool, inHSM(certificate("kept", dual, "kept.example"), "vault"), certificate("soft", dual, "soft.example"))
	g := gateway("hsm", https("kept", 443, "kept.example"), https("soft", 8443, "soft.example"))
	g.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: "vault"}
	g.Spec.Replicas = ptr.To[int32](2)
	n.create(g)
	n.waitPods(echo, 1)
	waitReady(t, pool, forReady)
	waitReady(t, g, forReady)
	ca := n.give("ca.pem", a.bundle())
	x := hsmTest{
		vault: v, pool: pool, gateway: g,
		kept: request{address: address(g, 443), name: "kept.example", ca: ca},
		soft: request{address: address(g, 8443), name: "soft.example", ca: ca},
	}
	for _, r := range []request{x.kept, x.soft} {
		n.waitServed(openssl35, r)
		n.waitServed(go127, r)
	}
	for _, c := range []struct {
		name string
		test func(hsmTest)
	}{
		{"each handshake is signed by a member", hsmTest.signs},
		{"the keys are in the token alone", hsmTest.keepsKeys},
		{"pods spread over members", hsmTest.spreads},
		{"members are killed in turn", hsmTest.membersGo},
		{"sessions die under a member", hsmTest.sessionsDie},
		{"certificates rotate and HAProxy is reloaded", hsmTest.rotates},
		{"slow members hold up their own listener alone", hsmTest.slow},
		{"what is wrong is told and changes nothing", hsmTest.wrong},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			x := x
			x.T = t
			c.test(x)
		}) {
			return // the next begin with what the last left
		}
	}
}

// hsmTest is a gateway with a listener whose keys the vault has, and one whose keys are in Secrets.
type hsmTest struct {
	vault
	pool       *v1alpha1.HSMPool
	gateway    *v1alpha1.QTLSGateway
	kept, soft request
}

// both lets Go, which takes the ECDSA chain, and curl on OpenSSL 3.5, which takes the ML-DSA chain, connect until it is
// told to stop; it then fails the test when any connection failed, and returns how many there were.
func (n namespace) both(what string, r request) (stop func() int) {
	n.Helper()
	classical, postQuantum := n.startLoad(r, 20, 20), n.startCurlLoad(r, 1, 10)
	return func() int {
		n.Helper()
		c, p := n.stop(classical), n.stop(postQuantum)
		result(n.T, "%s, Go 1.27 (ECDSA-P256): %s", what, c)
		result(n.T, "%s, curl on OpenSSL 3.5 (ML-DSA-65): %s", what, p)
		if c.Failed+p.Failed > 0 {
			n.Errorf("%s: %d of %d connections failed", what, c.Failed+p.Failed, c.Total+p.Total)
		}
		return c.Total + p.Total
	}
}

// mustServeDual fails the test unless a client that takes ML-DSA gets that certificate, and one that does not the other.
func (n namespace) mustServeDual(r request) {
	n.Helper()
	for _, c := range []struct {
		client tlsClient
		want   v1alpha1.KeyAlgorithm
	}{{openssl35, mlDSA65}, {go127, ecdsaP256}} {
		if got := n.mustServe(c.client, r); got.Algorithm != string(c.want) {
			n.Errorf("%s: got %s, want %s", c.client.name, got, c.want)
		}
	}
}

// reloads of HAProxy, of all pods.
func (x hsmTest) reloads() float64 {
	x.Helper()
	sum := 0.0
	for _, p := range x.gatewayPods(x.gateway) {
		sum += x.metric(p, "qtls_agent_reloads_total")
	}
	return sum
}

func (x hsmTest) signs() {
	beforeA, beforeB := x.signed("a"), x.signed("b")
	const rounds = 5
	for range rounds {
		x.mustServeDual(x.kept)
	}
	byA, byB := x.signed("a")-beforeA, x.signed("b")-beforeB
	result(x.T, "%d handshakes, half of them with ML-DSA-65, half with ECDSA-P256: member a signed %.0f times, member b %.0f times", 2*rounds, byA, byB)
	if byA+byB < 2*rounds {
		x.Errorf("%v and %v signatures of the members for %d handshakes", byA, byB, 2*rounds)
	}
	// A key in a Secret is no business of theirs.
	before := x.signed("a") + x.signed("b")
	x.mustServe(openssl35, x.soft)
	if after := x.signed("a") + x.signed("b"); after != before {
		x.Errorf("the members signed %v times for a certificate whose key is in a Secret", after-before)
	}
	eventually(x.T, forChange, "the pool tells of the signatures", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, x.pool); !ok {
			return false, state
		}
		var sum int64
		for _, m := range x.pool.Status.Members {
			sum += m.Signatures
		}
		return x.pool.Status.Up == "2/2" && sum >= 2*rounds, fmt.Sprintf("%+v", x.pool.Status)
	})
}

func (x hsmTest) keepsKeys() {
	// The public keys of what is served, and which private keys any Secret has.
	kept := map[string]string{}
	labels := map[v1alpha1.KeyAlgorithm]string{}
	for _, algorithm := range dual {
		s := x.tlsSecret("kept", algorithm)
		kept[publicKey(x.T, s.Data["tls.crt"])] = s.Name
		reference, err := keypair.ParseReference(s.Data["tls.key"])
		if err != nil || reference.Pool != x.pool.Name {
			x.Fatalf("Secret %s: tls.key is no reference to HSMPool %s: %v", s.Name, x.pool.Name, err)
		}
		labels[algorithm] = reference.Label
	}
	soft := publicKey(x.T, x.tlsSecret("soft", mlDSA65).Data["tls.crt"])
	all, keys, found := x.secrets(), 0, false
	for name, data := range all {
		for field, value := range data {
			for _, key := range privateKeys(value) {
				keys++
				found = found || key == soft
				if of, is := kept[key]; is {
					x.Errorf("Secret %s, %s: the private key of the certificate in Secret %s", name, field, of)
				}
			}
		}
	}
	result(x.T, "%d Secrets of the whole cluster, %d private keys in them: none of %d certificates whose keys the HSM has", len(all), keys, len(kept))
	if !found {
		x.Error("the search has not found the private key that is in a Secret: it cannot find any")
	}
	for _, daemon := range []string{"a", "b"} {
		client := x.client(daemon)
		for algorithm, label := range labels {
			key, err := client.Find(x.Context(), hsm.Key{Label: label})
			if err != nil {
				x.Errorf("member %s: key %s: %v", daemon, label, err)
				continue
			}
			result(x.T, "member %s, %s key %s: CKA_SENSITIVE %t, CKA_EXTRACTABLE %t", daemon, algorithm, label, key.Sensitive, key.Extractable)
			if _, is := kept[string(key.PublicKey)]; !is || !key.Sensitive || key.Extractable {
				x.Errorf("member %s: key %s is the certificate's: %t, sensitive %t, extractable %t", daemon, label, is, key.Sensitive, key.Extractable)
			}
		}
	}
}

// publicKey of a certificate, in DER.
func publicKey(t *testing.T, certificate []byte) string {
	t.Helper()
	c := firstCertificate(string(certificate))
	if c == nil {
		t.Fatalf("no certificate: %s", certificate)
	}
	return string(c.RawSubjectPublicKeyInfo)
}

// privateKeys in PEM form, each told by its public key.
func privateKeys(data []byte) []string {
	var found []string
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		key, err := keypair.ParseKey(pem.EncodeToMemory(block))
		if err != nil {
			continue
		}
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			public = nil // one of the OpenSSL provider's: not what an HSM has
		}
		found = append(found, string(public))
	}
	return found
}

func (x hsmTest) membersGo() {
	before := x.reloads()
	stop := x.both("members killed in turn", x.kept)
	for _, turn := range [][2]string{{"a", "b"}, {"b", "a"}} {
		killed, other := turn[0], turn[1]
		x.away(killed)
		x.waitSigning(other)
		x.back(killed)
		result(x.T, "member %s was killed, and member %s signed", killed, other)
		x.waitSigning("a") // the first that can
	}
	total := stop()

	// The control: with both away, handshakes fail, and those with other keys go on.
	software := x.both("both members away, keys in Secrets", x.soft)
	losing := x.kept
	losing.patience = 10 * time.Second
	x.away("a")
	x.away("b")
	load := x.startLoad(losing, 5, 10)
	message := waitCondition(x.T, x.pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonHSMUnreachable, forChange)
	tells(x.T, message, `"a"`, `"b"`)
	control := x.stop(load)
	result(x.T, "both members away: %d of %d connections failed; said: %s", control.Failed, control.Total, message)
	if control.Succeeded > 0 || control.Failed == 0 {
		x.Errorf("both members are away, and %d of %d connections succeeded", control.Succeeded, control.Total)
	}
	x.back("b")
	x.back("a")
	start := time.Now()
	x.waitServed(openssl35, x.kept)
	x.waitServed(go127, x.kept)
	result(x.T, "served again %.1f s after they are back", time.Since(start).Seconds())
	x.waitUnfailing()
	software()
	after := x.reloads()
	result(x.T, "%d connections while members came and went; %.0f reloads of HAProxy", total, after-before)
	if after != before {
		x.Errorf("%v reloads of HAProxy: it is to find its members again by itself", after-before)
	}
	waitReady(x.T, x.pool, forChange)
	x.waitEvents("HSMPool", x.pool.Name, v1alpha1.ReasonHSMUnreachable, "MemberUp")
}

func (x hsmTest) sessionsDie() {
	before := x.reloads()
	stop := x.both("sessions die under a member", x.kept)
	const times = 3
	for range times { // and are there again at once
		x.restart("a")
		x.waitSigning("a")
	}
	total, after := stop(), x.reloads()
	result(x.T, "%d connections while all sessions of member a died under it %d times; %.0f reloads of HAProxy", total, times, after-before)
	if after != before {
		x.Errorf("%v reloads of HAProxy: it is to log in again by itself", after-before)
	}
}

func (x hsmTest) spreads() {
	// shares of both members in the signatures of some connections, as their daemons count them.
	pods := x.gatewayPods(x.gateway)
	sum := func(metric string) (sum float64) {
		x.Helper()
		for _, p := range pods {
			sum += x.metric(p, metric)
		}
		return sum
	}
	shares := func(order v1alpha1.HSMOrder) (a, b float64) {
		x.Helper()
		eventually(x.T, forChange, "both pods have both members", func(context.Context) (bool, string) {
			up := sum("qtls_hsm_member_up")
			return up == 4, fmt.Sprintf("%v of 4", up)
		})
		beforeA, beforeB := x.signed("a"), x.signed("b")
		s := x.stop(x.startLoad(x.kept, 20, 80))
		a, b = x.signed("a")-beforeA, x.signed("b")-beforeB
		result(x.T, "%s, %d pods: %d connections, %d failed; member a signed %.0f times, member b %.0f times", order, len(pods), s.Total, s.Failed, a, b)
		for _, p := range pods {
			const made = "qtls_hsm_signature_duration_seconds_count"
			a, b := x.metric(p, made, `member="a"`), x.metric(p, made, `member="b"`)
			result(x.T, "%s, pod %s since its last reload: %.0f of member a, %.0f of member b", order, p.Name, a, b)
			if order == v1alpha1.HSMSpread && min(a, b) == 0 {
				x.Errorf("pod %s does not spread its signatures over both members", p.Name)
			}
		}
		if s.Failed > 0 || a+b < float64(s.Total) {
			x.Errorf("%s: %v and %v signatures: %s", order, a, b, s)
		}
		return a, b
	}
	const failovers = "qtls_hsm_failovers_total"
	before := sum(failovers)
	_, b := shares(v1alpha1.HSMOrdered)
	eventually(x.T, forChange, "the second member has made what the first could not, and nothing else", func(context.Context) (bool, string) {
		failed := sum(failovers) - before
		return b <= failed, fmt.Sprintf("%v signatures, %v that the first could not make", b, failed)
	})
	x.change(func(p *v1alpha1.HSMPool) { p.Spec.Order = v1alpha1.HSMSpread })
	if a, b := shares(v1alpha1.HSMSpread); min(a, b) < (a+b)/4 {
		x.Errorf("the members have made %v and %v signatures, want no less than a quarter each", a, b)
	}
	x.change(func(p *v1alpha1.HSMPool) { p.Spec.Order = v1alpha1.HSMOrdered })
}

// change the pool, and wait until the pods go by it.
func (x hsmTest) change(f func(*v1alpha1.HSMPool)) {
	x.Helper()
	update(x.T, x.pool, f)
	revision := x.gateway.Status.Revision
	eventually(x.T, forChange, "the pods go by the changed pool", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, x.gateway); !ok {
			return false, state
		}
		c := condition(x.gateway, v1alpha1.ConditionProgrammed)
		return x.gateway.Status.Revision != revision && c != nil && c.Status == "True", describe(x.gateway)
	})
}

// waitUnfailing waits until no handshake fails any more.
func (x hsmTest) waitUnfailing() {
	x.Helper()
	eventually(x.T, forChange, "no handshake fails any more", func(context.Context) (bool, string) {
		s := x.stop(x.startLoad(x.kept, 50, 50))
		return s.Failed == 0, s.String()
	})
}

func (x hsmTest) rotates() {
	before := x.reloads()
	stop := x.both("rotations and reloads", x.kept)
	c := &v1alpha1.PQCCertificate{}
	c.Namespace, c.Name = x.name, "kept"
	keys := map[string]bool{}
	const rotations = 3
	for turn := range rotations {
		renew(x.T, x.namespace, "kept", fmt.Sprintf("turn-%d", turn))
		for _, p := range x.gatewayPods(x.gateway) {
			r := x.kept
			r.address = join(p.Status.PodIP, 443)
			x.waitSerial(openssl35, r, serialOf(x.T, c, mlDSA65), forChange)
			x.waitSerial(go127, r, serialOf(x.T, c, ecdsaP256), forChange)
		}
		keys[publicKey(x.T, x.tlsSecret("kept", mlDSA65).Data["tls.crt"])] = true
	}
	rotated := x.reloads()
	for _, preference := range []v1alpha1.CertificatePreference{v1alpha1.PreferClassical, v1alpha1.PreferPostQuantum} {
		update(x.T, x.gateway, func(g *v1alpha1.QTLSGateway) { g.Spec.Listeners[1].Preference = preference })
		waitProgrammed(x.T, x.gateway, forChange)
	}
	after := x.reloads()
	total := stop()
	result(x.T, "%d connections over %d rotations of both certificates, %d new ML-DSA-65 keys, %.0f reloads, and %.0f reloads for changes of the configuration", total, rotations, len(keys), rotated-before, after-rotated)
	if len(keys) != rotations {
		x.Errorf("%d keys in %d rotations", len(keys), rotations)
	}
	if after == rotated {
		x.Error("the changes of the configuration have reloaded nothing")
	}
	x.mustHaveNoKeyOf("kept") // nor is one of the new keys in a Secret
}

func (x hsmTest) slow() {
	setMembers := func(members ...v1alpha1.HSMMember) {
		x.Helper()
		x.change(func(p *v1alpha1.HSMPool) { p.Spec.Members = members })
	}
	measure := func(what string, delay time.Duration) {
		x.Helper()
		kept, soft := x.startLoad(x.kept, 5, 20), x.startLoad(x.soft, 20, 40) // fewer than sessions can sign, however slow
		k, s := x.stop(kept), x.stop(soft)
		result(x.T, "%s: with the HSM's key p50 %.1f ms, p99 %.1f ms, %d of %d failed; with a key in a Secret meanwhile p50 %.1f ms, p99 %.1f ms, %d of %d failed",
			what, k.HandshakeP50Ms, k.HandshakeP99Ms, k.Failed, k.Total, s.HandshakeP50Ms, s.HandshakeP99Ms, s.Failed, s.Total)
		if k.Failed+s.Failed > 0 {
			x.Errorf("%s: %s\n%s", what, k, s)
		}
		if least := float64(delay.Milliseconds()); k.HandshakeP50Ms < least {
			x.Errorf("%s: half of the handshakes with the HSM's key take less than %v ms", what, least)
		}
	}
	measure("a member as it is", 0)
	setMembers(x.member("a", portTenMillis))
	measure("a member that takes 10 ms longer", 10*time.Millisecond)
	setMembers(x.member("a", portHalfSecond))
	measure("a member that takes 500 ms longer", 500*time.Millisecond)

	// One takes connections and answers nothing. Handshakes wait until its time-out, longer than those with other keys may
	// take, and the other member signs.
	x.change(func(p *v1alpha1.HSMPool) {
		p.Spec.Members = []v1alpha1.HSMMember{x.member("a", portA), x.member("b", portB)}
		p.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second}
	})
	x.hang("a")
	stop := x.both("one of two members hangs", x.kept)
	x.waitSigning("b")
	stop()

	// Both do. Were HAProxy's threads to wait for them, nobody would be served.
	x.hang("b")
	losing := x.kept
	losing.patience = 15 * time.Second // a machine that is full stands still for some seconds; members hang for longer
	kept, soft := x.startLoad(losing, 5, 20), x.startLoad(x.soft, 20, 100)
	k, s := x.stop(kept), x.stop(soft)
	result(x.T, "members that hang: with the HSM's key %d of %d failed; with a key in a Secret meanwhile p50 %.1f ms, p99 %.1f ms, %d of %d failed",
		k.Failed, k.Total, s.HandshakeP50Ms, s.HandshakeP99Ms, s.Failed, s.Total)
	if s.Failed > 0 || k.Failed == 0 || s.HandshakeP50Ms >= 1000 || s.HandshakeP99Ms >= float64(losing.patience.Milliseconds()) {
		x.Errorf("members that hang: %s\n%s", k, s)
	}
	x.goOn("a")
	x.goOn("b")
	x.change(func(p *v1alpha1.HSMPool) { p.Spec.Timeout = forSignature })
	x.waitUnfailing()
	waitReady(x.T, x.pool, forChange)
}

// keyName is how messages have a key's label.
var keyName = regexp.MustCompile(`key "([^"]+)"`)

func (x hsmTest) wrong() {
	serial := x.mustServe(openssl35, x.kept).Serial
	stop := x.both("while configurations are wrong", x.kept)

	lost := x.member("a", portA)
	lost.Remote.TLSSecretRef.Name = "nowhere"
	withoutSecret := x.vault.pool("without-secret", lost)
	wrongPIN := x.vault.pool("wrong-pin", x.member("forgetful", portForgetful))
	half := x.vault.pool("half", x.member("a", portA), x.member("stranger", portStranger))
	lacking := inHSM(certificate("half", []v1alpha1.KeyAlgorithm{ecdsaP256}, "half.example"), "half")
	nowhere := inHSM(certificate("nowhere", []v1alpha1.KeyAlgorithm{ecdsaP256}, "nowhere.example"), "nobody")
	x.create(withoutSecret, wrongPIN, half, lacking, nowhere)
	update(x.T, x.gateway, func(g *v1alpha1.QTLSGateway) { g.Spec.HSMRef.Name = "nobody" })

	say := func(what, message string, words ...string) {
		x.Helper()
		result(x.T, "%s: %s", what, message)
		tells(x.T, message, words...)
	}
	say("a Secret that is not there", waitCondition(x.T, withoutSecret, v1alpha1.ConditionReady, "False", v1alpha1.ReasonSecretNotFound, forChange), "tlsSecretRef", `"nowhere"`)
	say("a wrong PIN", waitCondition(x.T, wrongPIN, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINWrong, forChange), `"forgetful"`, "pin-file")
	absent := waitCondition(x.T, lacking, v1alpha1.ConditionReady, "False", v1alpha1.ReasonKeyNotInEveryMember, forChange)
	say("a key that a member has not", absent, `"stranger"`, "replicate")
	say("no pool, a certificate's", waitCondition(x.T, nowhere, v1alpha1.ConditionReady, "False", v1alpha1.ReasonHSMPoolNotFound, forChange), `"nobody"`)
	say("no pool, a gateway's", waitCondition(x.T, x.gateway, v1alpha1.ConditionResolvedRefs, "False", v1alpha1.ReasonHSMPoolNotFound, forChange), "spec.hsmRef", `"nobody"`)

	// What is published is held, with all that it needs: a pod that begins now serves it.
	before := x.podUIDs(x.gateway)
	victim := x.gatewayPods(x.gateway)[0]
	remove(x.T, &victim)
	later := x.kept
	eventually(x.T, forReady, "another pod takes the place of one", func(context.Context) (bool, string) {
		for _, p := range x.gatewayPods(x.gateway) {
			if !slices.Contains(before, string(p.UID)) && isReady(&p) {
				later.address = join(p.Status.PodIP, 443)
			}
		}
		return later.address != x.kept.address, "none is ready"
	})
	if got := x.mustServe(openssl35, later).Serial; got != serial {
		x.Errorf("a pod that began while no pool was there serves the certificate %s, want %s", got, serial)
	}
	waitCondition(x.T, x.gateway, v1alpha1.ConditionResolvedRefs, "False", v1alpha1.ReasonHSMPoolNotFound, forChange)

	// Another key of the same name.
	label := keyName.FindStringSubmatch(absent)
	if label == nil {
		x.Fatalf("no key is named: %s", absent)
	}
	if _, err := x.client("stranger").Generate(x.Context(), ecdsaP256, hsm.Key{Label: label[1]}); err != nil {
		x.Fatal(err)
	}
	say("another key of the same name", waitCondition(x.T, lacking, v1alpha1.ConditionReady, "False", v1alpha1.ReasonKeyMismatch, forChange), label[1], "stranger")

	if got := x.mustServe(openssl35, x.kept).Serial; got != serial {
		x.Errorf("the certificate %s was served before, and now %s", serial, got)
	}
	update(x.T, x.gateway, func(g *v1alpha1.QTLSGateway) { g.Spec.HSMRef.Name = "vault" })
	waitReady(x.T, x.gateway, forChange)
	stop()
}
