//go:build integration

package certificate_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/openssl/openssltest"
	"qtls.dev/qtls/internal/pki"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/testenv"
)

// withPool makes an HSMPool of stand-ins for hsmd.
func (w *world) withPool(name string, members int) []*hsmtest.Server {
	w.t.Helper()
	authority := hsmtest.NewAuthority(w.t)
	var servers []*hsmtest.Server
	var addresses []string
	for range members {
		s := hsmtest.Serve(w.t, authority)
		servers, addresses = append(servers, s), append(addresses, s.Address)
	}
	w.pool(name, authority, addresses...)
	return servers
}

// pool makes an HSMPool of hsmds.
func (w *world) pool(name string, authority *hsmtest.Authority, addresses ...string) *v1alpha1.HSMPool {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-client"}, Data: map[string][]byte{"ca.crt": authority.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = authority.Issue(w.t, hsmtest.ClientName)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pool.Spec.Timeout = &metav1.Duration{Duration: time.Minute}
	for i, address := range addresses {
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: fmt.Sprintf("hsm-%d", i), Remote: &v1alpha1.RemoteHSM{
			Address: v1alpha1.StoreAddress(address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: secret.Name}}})
	}
	w.create(secret, pool)
	return pool
}

func inHSM(c *v1alpha1.PQCCertificate, pool string) *v1alpha1.PQCCertificate {
	c.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageHSM, HSMRef: &v1alpha1.HSMPoolReference{Name: pool}}
	return c
}

// reference in a certificate's Secret, which has no private key.
func (w *world) reference(secretName string) keypair.Reference {
	w.t.Helper()
	r, err := keypair.ParseReference(w.secret(secretName).Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// The life of certificates whose keys never leave an HSM: made there, used for
// the request, followed by new ones, and destroyed when nobody uses them.
func TestKeysStayInTheHSM(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	root := ca("root", "self", "ML-DSA-87", "ECDSA-P384")
	web := inHSM(server("web", "ca", "ML-DSA-65", "ECDSA-P256"), "pool")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-87", "root-ecdsa-p384"), web)
	w.issued(web)

	labels := map[int64]string{}
	for _, name := range []string{"web-ml-dsa-65", "web-ecdsa-p256"} {
		r := w.reference(name)
		if r.Pool != "pool" || !strings.HasPrefix(r.Label, name+"-1-") || !token.Has(r.Label) {
			t.Errorf("Secret %s refers to %+v, which the token has: %t", name, r, token.Has(r.Label))
		}
		s := w.secret(name)
		pair, err := keypair.ParseStored(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil || pair.Chain[0].VerifyHostname("www.example.com") != nil {
			t.Errorf("Secret %s: %v", name, err)
		}
		if s.Type != corev1.SecretTypeTLS || s.Annotations[v1alpha1.AnnotationPreviousKeys] != "" {
			t.Errorf("Secret %s: type %s, annotations %v", name, s.Type, s.Annotations)
		}
	}
	labels[1] = w.reference("web-ml-dsa-65").Label

	// Each renewal makes a key; those of before stay while gateways may sign with
	// them: the last, and what was replaced within the hour.
	renew := func(revision int64) {
		t.Helper()
		w.change(web, func() {
			web.Annotations = map[string]string{v1alpha1.AnnotationRenew: fmt.Sprint(revision)}
		})
		w.revision(web, revision)
		labels[revision] = w.reference("web-ml-dsa-65").Label
	}
	has := func(want ...int64) {
		t.Helper()
		previous := w.secret("web-ml-dsa-65").Annotations[v1alpha1.AnnotationPreviousKeys]
		latest := int64(len(labels))
		for revision, label := range labels {
			if token.Has(label) != slices.Contains(want, revision) {
				t.Errorf("the token has the key %q: %t", label, token.Has(label))
			}
			if kept := strings.Contains(previous, "object="+label+";"); kept != (token.Has(label) && revision != latest) {
				t.Errorf("the key %q is to be destroyed: %t", label, kept)
			}
		}
	}
	renew(2)
	renew(3)
	has(1, 2, 3)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	renew(4)
	has(3, 4)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	renew(5)
	has(4, 5)
	w.secretsStaySecret()

	// Back into a Secret: a new key.
	w.change(web, func() { web.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageSecret} })
	w.revision(web, 6)
	w.verify("web-ml-dsa-65", "www.example.com")
}

// A former key stays while a pod serves a certificate with it, or may: one whose
// gateway is held does, however many renewals there are.
func TestFormerKeysThatGatewaysServe(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", Labels: resources.Selector("edge")},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "haproxy", Image: "haproxy:test"}}}}
	w.create(selfSigned("self"), web, pod)
	w.issued(web)
	first := w.reference("web-ecdsa-p256")
	revision := int64(1)
	renew := func() keypair.Reference {
		t.Helper()
		revision++
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
		return w.reference("web-ecdsa-p256")
	}
	keeps := func(key keypair.Reference, why string) {
		t.Helper()
		want := fmt.Sprintf("Normal KeyInUse HSMPool \"pool\": former key %q is not destroyed before a renewal to come: %s", key.Label, why)
		if told := w.told(); !token.Has(key.Label) || why != "" && !slices.Contains(told, want) {
			t.Errorf("the token has the key %q: %t; events %q, want %q", key.Label, token.Has(key.Label), told, want)
		}
	}

	w.agents.serves(pod, first)
	renew()
	renew()
	keeps(first, `pod edge-1 of QTLSGateway "edge" serves a certificate with it`)
	w.agents.silent(pod)
	renew()
	keeps(first, `what pod edge-1 of QTLSGateway "edge" serves is not known`)
	// It follows at last: all are destroyed that are an hour old, but for its own.
	own := renew()
	w.agents.serves(pod, own)
	renew()
	last := renew()
	if token.Has(first.Label) || !token.Has(own.Label) || !token.Has(last.Label) {
		t.Errorf("the token has the first key: %t, the one that is served: %t, the last: %t", token.Has(first.Label), token.Has(own.Label), token.Has(last.Label))
	}
	if err := w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	renew()
	if token.Has(own.Label) {
		t.Errorf("the token has the key %q that nobody serves", own.Label)
	}
}

// A key that somebody was told to use a moment ago is not destroyed, though the
// cache does not show it yet.
func TestAKeyThatWasAdoptedAMomentAgoIsKept(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	made := w.reference("web-ecdsa-p256").Label
	other := withExisting(inHSM(server("other", "self", "ECDSA-P256"), "pool"), "ECDSA-P256", made)
	annotate(other, unseen, "true")
	w.create(other)
	for revision := int64(2); revision <= 3; revision++ {
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
	}
	if !token.Has(made) {
		t.Errorf("the key %q is gone, which PQCCertificate other was told to use", made)
	}
}

// Whoever may read PQCCertificates in the served namespaces alone sees in all of
// them who was told to use a key.
func TestAKeyThatIsUsedInAnotherServedNamespaceIsKept(t *testing.T) {
	w := stoppedWorld(t)
	elsewhere := testenv.Namespace(t, w.Client)
	w.served = append(w.served, elsewhere)
	w.start(nil)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	used := w.reference("web-ecdsa-p256").Label
	other := withExisting(inHSM(server("other", "self", "ECDSA-P256"), "pool"), "ECDSA-P256", used)
	other.Namespace = elsewhere
	if err := w.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	var unused string
	for revision := int64(2); revision <= 4; revision++ {
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
		if revision == 2 {
			unused = w.reference("web-ecdsa-p256").Label
		}
	}
	if !token.Has(used) || token.Has(unused) {
		t.Errorf("the token has the key that is used: %t, and the one that is not: %t", token.Has(used), token.Has(unused))
	}
}

// Who restores Secrets of a backup has those of the object of before, which may
// go on to use its keys in another cluster: they stay, and those of the new one go.
func TestKeysOfSecretsFromABackupAreKept(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	const name, next = "web-ecdsa-p256", "web-ecdsa-p256-next"
	theirs := []string{w.reference(name).Label}
	renew := func(revision int64) {
		t.Helper()
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
	}
	renew(2)
	w.revision(web, 2)
	theirs = append(theirs, w.reference(name).Label)
	w.approving = false
	renew(3) // which is under way when the backup is made
	w.request()
	theirs = append(theirs, w.reference(next).Label)
	w.stop()

	var backup []client.Object
	for _, name := range []string{name, next} {
		s := w.secret(name)
		backup = append(backup, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.Labels, Annotations: s.Annotations}, Type: s.Type, Immutable: s.Immutable, Data: s.Data})
	}
	gone := []client.Object{web, w.secret(name), w.secret(next)} // as the garbage collector does
	for _, cr := range w.requests() {
		gone = append(gone, &cr)
	}
	for _, o := range gone {
		if err := w.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	web = &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: web.Annotations}, Spec: web.Spec}
	web.Spec.DNSNames = []v1alpha1.Hostname{"copy.example.com"}
	w.create(append(backup, web)...)
	w.approving = true
	w.told()
	w.start(nil)
	w.revision(web, 3)
	own := w.reference(name).Label
	for revision := int64(4); revision <= 5; revision++ {
		renew(revision)
		w.revision(web, revision)
	}
	// Nor can anybody say of a key whose it is when its Secret has lost what says so.
	theirs = append(theirs, w.reference(name).Label)
	stripped := w.secret(name)
	w.change(stripped, func() { delete(stripped.Annotations, v1alpha1.AnnotationRequested) })
	w.revision(web, 6)
	renew(7)
	w.revision(web, 7)
	told := strings.Join(w.told(), "\n")
	for _, label := range theirs {
		if !token.Has(label) || !strings.Contains(told, fmt.Sprintf("Warning KeyLeft HSMPool \"pool\": key %q serves no more, and stays in the token", label)) {
			t.Errorf("the token has the key %q of the object of before: %t; events:\n%s", label, token.Has(label), told)
		}
	}
	if slices.Contains(theirs, own) || token.Has(own) {
		t.Errorf("the token has the former key %q, which is the new one's own: %t", own, token.Has(own))
	}
}

// lose a key, as a token does that is made anew.
func lose(token *hsmtest.Token, label string) { token.Put(label, nil, 0) }

// A certificate whose key is gone from all members is of no use. Where the key was
// made for it, it gets another one, but not again and again.
func TestAKeyThatIsGoneIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	w.told()
	var labels []string
	for revision := int64(2); revision <= 3; revision++ {
		lost := w.reference("web-ecdsa-p256").Label
		labels = append(labels, lost)
		lose(token, lost)
		w.pass(web, time.Minute)
		w.revision(web, revision)
		want := fmt.Sprintf("Normal Issuing issuing the ECDSA-P256 certificate (revision %d): HSMPool \"pool\": no member has key %q", revision, lost)
		if told := w.told(); !slices.Contains(told, want) {
			t.Errorf("events %q, want %q", told, want)
		}
	}
	last := w.reference("web-ecdsa-p256").Label
	if slices.Contains(labels, last) || !token.Has(last) {
		t.Errorf("it has the key %q, which the token has: %t; before %q", last, token.Has(last), labels)
	}

	lose(token, last)
	w.pass(web, time.Minute)
	if c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyNotFound); !strings.Contains(c.Message, `HSMPool "pool" loses keys again and again: revisions 2 and 3 were issued a short while ago for that`) {
		t.Error(c.Message)
	}
	w.pass(web, 5*time.Minute)
	w.revision(web, 4)
}

// One that a member has lost serves on, and that is told: the next member that is lost
// takes the key along.
func TestAKeyThatOneMemberLacksIsTold(t *testing.T) {
	w := newWorld(t)
	servers := w.withPool("pool", 2)
	shared := w.key("ML-DSA-65")
	for _, s := range servers {
		s.Token.Put(existing, shared, 1)
	}
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	w.told()
	lose(servers[1].Token, existing)
	w.pass(web, time.Minute)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonKeyNotInEveryMember)
	if !strings.Contains(c.Message, "; replicate it with the HSM's own means") || web.Status.Certificates[0].Revision != 1 {
		t.Errorf("revision %d: %s", web.Status.Certificates[0].Revision, c.Message)
	}
	var told []string
	w.eventually(func() error { // it follows the condition
		told = append(told, w.told()...)
		if !slices.ContainsFunc(told, func(event string) bool {
			return strings.HasPrefix(event, "Warning KeyNotInEveryMember Ready: issued: ML-DSA-65 until")
		}) {
			return fmt.Errorf("events %q", told)
		}
		return nil
	})
	servers[1].Token.Put(existing, shared, 1)
	w.pass(web, time.Minute)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
}

// Signatures of a member that has another key under the label fail at the clients, and nobody else would tell why.
func TestAKeyThatIsAnotherOneInOneMemberIsTold(t *testing.T) {
	w := newWorld(t)
	servers := w.withPool("pool", 2)
	shared := w.key("ML-DSA-65")
	for _, s := range servers {
		s.Token.Put(existing, shared, 1)
	}
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	w.told()
	lose(servers[0].Token, existing) // the first that gateways ask
	servers[0].Token.Put(existing, w.key("ML-DSA-65"), 1)
	w.pass(web, time.Minute)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonKeyMismatch)
	if !strings.Contains(c.Message, `of member "hsm-1" is another one than that of member "hsm-0"; destroy one of them, and replicate the other`) || web.Status.Certificates[0].Revision != 1 {
		t.Errorf("revision %d: %s", web.Status.Certificates[0].Revision, c.Message)
	}
	var told []string
	w.eventually(func() error {
		told = append(told, w.told()...)
		if !slices.ContainsFunc(told, func(event string) bool { return strings.HasPrefix(event, "Warning KeyMismatch Ready: ") }) {
			return fmt.Errorf("events %q", told)
		}
		return nil
	})
	lose(servers[0].Token, existing)
	servers[0].Token.Put(existing, shared, 1)
	w.pass(web, time.Minute)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
}

// Where all members have another key under its label, the certificate is issued anew.
func TestAKeyThatIsAnotherOneIsReplaced(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	root := inHSM(ca("root", "self", "ECDSA-P384"), "pool")
	w.create(selfSigned("self"), web, root)
	w.issued(web)
	w.issued(root)
	lost, authority := w.reference("web-ecdsa-p256").Label, w.reference("root-ecdsa-p384").Label
	token.Put(lost, w.key("ECDSA-P256"), 1)
	w.pass(web, time.Minute)
	w.revision(web, 2)
	if now := w.reference("web-ecdsa-p256").Label; now == lost {
		t.Errorf("it has the key %q still", now)
	}

	// What an authority signed is not that of another key, which it gets for the asking.
	other := w.key("ECDSA-P384")
	token.Put(authority, other, 1)
	w.pass(root, time.Minute)
	c := w.condition(root, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyMismatch)
	if !strings.Contains(c.Message, fmt.Sprintf("key %q is another one than the certificate is for: restore the authority's key", authority)) || root.Status.Certificates[0].Revision != 1 {
		t.Errorf("revision %d: %s", root.Status.Certificates[0].Revision, c.Message)
	}
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "2") })
	w.revision(root, 2)
	certs, err := keypair.ParseCertificates(w.secret("root-ecdsa-p384").Data[corev1.TLSCertKey])
	if err != nil || !pki.SameKey(other.Public(), certs[0].PublicKey) {
		t.Errorf("the certificate is not of the key that is there: %v", err)
	}
}

// What one member does not say is nothing against a certificate, though all the others
// lack the key.
func TestAKeyThatAMemberMayHaveIsNotGone(t *testing.T) {
	w := newWorld(t)
	servers := w.withPool("pool", 2)
	var asked atomic.Int64
	servers[0].Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation == 2 {
			asked.Add(1)
		}
		return nil, false
	}
	shared := w.key("ML-DSA-65")
	for _, s := range servers {
		s.Token.Put(existing, shared, 1)
	}
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	lose(servers[0].Token, existing)
	servers[1].Stop()
	for range 3 { // a look begins when the one before has ended
		before := asked.Load()
		w.pass(web, time.Minute)
		w.eventually(func() error {
			if asked.Load() == before {
				return errors.New("nobody looks for the key")
			}
			return nil
		})
	}
	w.issued(web)
	if got := web.Status.Certificates[0].Revision; got != 1 {
		t.Errorf("it is at revision %d", got)
	}
}

// A key that was there before is nobody's to make: it is waited for.
func TestAnExistingKeyThatIsGoneIsTold(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	key := w.key("ML-DSA-65")
	token.Put(existing, key, 1)
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	lose(token, existing)
	w.pass(web, time.Minute)
	if c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyNotFound); !strings.Contains(c.Message, "which the present certificate is for; restore it with the HSM's own means") {
		t.Error(c.Message)
	}
	token.Put(existing, key, 1)
	w.pass(web, time.Minute)
	w.issued(web)
	if got := web.Status.Certificates[0].Revision; got != 1 {
		t.Errorf("it is at revision %d", got)
	}
	w.eventually(func() error {
		if slices.Contains(w.secretNames(), "web-ml-dsa-65-next") {
			return errors.New("what was begun is there still")
		}
		return nil
	})
}

// A key that cannot be destroyed now is destroyed by a renewal to come.
func TestKeysThatCannotBeDestroyedNow(t *testing.T) {
	w := newWorld(t)
	hsmd := w.withPool("pool", 1)[0]
	var refusing atomic.Bool
	refusing.Store(true)
	hsmd.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		return hsmtest.Refuse(0x30, "the token is away"), operation == 5 && refusing.Load()
	}
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	labels := []string{w.reference("web-ecdsa-p256").Label}
	renew := func() {
		t.Helper()
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		revision := int64(len(labels)) + 1
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
		labels = append(labels, w.reference("web-ecdsa-p256").Label)
	}
	renew()
	renew()
	if !hsmd.Token.Has(labels[0]) {
		t.Fatal("the token is not away")
	}
	refusing.Store(false)
	renew()
	for n, want := range []bool{false, false, true, true} {
		if hsmd.Token.Has(labels[n]) != want {
			t.Errorf("the token has the key %q: %t", labels[n], !want)
		}
	}
}

// What was begun and is not wanted any more leaves no key in the token; a key
// that serves, or that somebody else was told to use, stays.
func TestKeysOfAbandonedIssuances(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	web := inHSM(server("web", "self", "ML-DSA-65", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	served := map[string]string{}
	for _, name := range []string{"web-ml-dsa-65", "web-ecdsa-p256"} {
		served[name] = w.reference(name).Label
	}
	asked, names := web.Spec.DNSNames, []string{"web-ml-dsa-65-next", "web-ecdsa-p256-next"}
	w.approving = false
	// begin revision 2 of both, which nobody approves: each has a key already.
	begin := func() map[string]string {
		t.Helper()
		w.change(web, func() { web.Spec.DNSNames = []v1alpha1.Hostname{"new.example.com"} })
		begun := map[string]string{}
		w.eventually(func() error {
			for _, name := range names {
				s := &corev1.Secret{}
				if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, s); err != nil {
					return err
				}
				r, err := keypair.ParseReference(s.Data[corev1.TLSPrivateKeyKey])
				if err != nil || !token.Has(r.Label) {
					return fmt.Errorf("the key %+v is not there yet: %w", r, err)
				}
				begun[name] = r.Label
			}
			return nil
		})
		return begun
	}
	giveUp := func(change func()) {
		t.Helper()
		w.change(web, func() {
			web.Spec.DNSNames = asked
			change()
		})
		w.eventually(func() error {
			for _, name := range names {
				if slices.Contains(w.secretNames(), name) {
					return fmt.Errorf("Secret %s is there", name)
				}
			}
			return nil
		})
	}
	has := func(label string, want bool) {
		t.Helper()
		if token.Has(label) != want {
			t.Errorf("the token has the key %q: %t", label, !want)
		}
	}

	begun := begin()
	giveUp(func() {})
	for _, name := range names {
		has(begun[name], false)
	}
	w.issued(web)
	for _, label := range served {
		has(label, true)
	}

	// One of the keys is used by another certificate meanwhile; and the spec does
	// not name the other's algorithm any more.
	begun = begin()
	other := withExisting(inHSM(server("other", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", begun["web-ml-dsa-65-next"])
	w.create(other)
	giveUp(func() { web.Spec.Algorithms = web.Spec.Algorithms[:1] })
	has(begun["web-ml-dsa-65-next"], true)
	has(begun["web-ecdsa-p256-next"], false)
	has(served["web-ml-dsa-65"], true)
	w.eventually(func() error {
		if slices.Contains(w.secretNames(), "web-ecdsa-p256") {
			return errors.New("the Secret of an algorithm that the spec does not name is there")
		}
		return nil
	})
	has(served["web-ecdsa-p256"], true)
}

// What was begun and is not wanted any more is kept in mind while its key cannot
// be destroyed.
func TestKeysOfAbandonedIssuancesThatCannotBeDestroyedNow(t *testing.T) {
	w := newWorld(t)
	hsmd := w.withPool("pool", 1)[0]
	var refusing atomic.Bool
	var refused atomic.Int64
	hsmd.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		refuse := operation == 5 && refusing.Load()
		if refuse {
			refused.Add(1)
		}
		return hsmtest.Refuse(0x30, "the token is away"), refuse
	}
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	pending := func(not string) (label string) {
		t.Helper()
		w.eventually(func() error {
			s := &corev1.Secret{}
			if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "web-ecdsa-p256-next"}, s); err != nil {
				return err
			}
			r, err := keypair.ParseReference(s.Data[corev1.TLSPrivateKeyKey])
			if err != nil || r.Label == not || !hsmd.Token.Has(r.Label) {
				return fmt.Errorf("the key %+v is not there yet: %w", r, err)
			}
			label = r.Label
			return nil
		})
		return label
	}
	name := func(web *v1alpha1.PQCCertificate, names ...v1alpha1.Hostname) {
		t.Helper()
		w.change(web, func() { web.Spec.DNSNames = names })
	}
	gone := func(label string) {
		t.Helper()
		w.pass(web, time.Second)
		w.eventually(func() error {
			if hsmd.Token.Has(label) {
				return fmt.Errorf("the token has the key %q", label)
			}
			return nil
		})
	}

	// Before there is a certificate, its pending Secret stays.
	served := web.Spec.DNSNames
	w.approving = false
	w.create(selfSigned("self"), web)
	first := pending("")
	refusing.Store(true)
	name(web, "first.example.com")
	waits := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonHSMNotReady)
	if !strings.Contains(waits.Message, fmt.Sprintf("key %q is of no use any more, and cannot be destroyed: ", first)) || !strings.Contains(waits.Message, "the token is away") {
		t.Errorf("it waits for something else: %s", waits.Message)
	}
	if label := pending(""); label != first {
		t.Errorf("the Secret names the key %q, not %q", label, first)
	}
	// Nor is it taken up again: members may have destroyed theirs.
	name(web, served...)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonHSMNotReady)
	refusing.Store(false)
	gone(first)
	w.approving = true
	w.issued(web)

	// The certificate that is there is what is wanted again: the Secret stays, too.
	w.approving = false
	name(web, "second.example.com")
	second := pending(w.reference("web-ecdsa-p256").Label)
	refusing.Store(true)
	name(web, served...)
	for range 2 {
		before := refused.Load()
		w.pass(web, time.Second)
		w.eventually(func() error {
			if refused.Load() == before {
				return errors.New("nobody tries to destroy the key")
			}
			return nil
		})
	}
	refusing.Store(false)
	gone(second)

	// Another one is wanted: a renewal destroys the key.
	name(web, "third.example.com")
	third := pending("")
	refusing.Store(true)
	name(web, "fourth.example.com")
	pending(third)
	if previous := w.secret("web-ecdsa-p256").Annotations[v1alpha1.AnnotationPreviousKeys]; !strings.Contains(previous, "object="+third+";") {
		t.Errorf("the former keys are %s, without %q", previous, third)
	}
	refusing.Store(false)
	w.approving = true
	w.pass(web, time.Hour)
	w.issued(web)
	gone(third)
}

// A self-signed certificate is signed by its own key, in the HSM.
func TestSelfSignedInTheHSM(t *testing.T) {
	w := newWorld(t)
	w.withPool("pool", 1)
	web := inHSM(server("web", "self", "ML-DSA-44"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	leaf := w.secret("web-ml-dsa-44").Data[corev1.TLSCertKey]
	certs, err := keypair.ParseCertificates(leaf)
	if err != nil {
		t.Fatal(err)
	}
	if c := certs[0]; c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) != nil {
		t.Error("it is not signed with its own key")
	}
}

// Whatever is wrong with a pool is told, and goes on by itself.
func TestWhyAKeyCannotBeHad(t *testing.T) {
	w := newWorld(t)
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonHSMPoolNotFound)

	servers := w.withPool("pool", 2)
	// The first member made it; nobody can bring it to the other but its owner.
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyNotInEveryMember)
	if !strings.Contains(c.Message, `is in member "hsm-0" and not in "hsm-1"`) {
		t.Error(c.Message)
	}
	label := w.reference("web-ecdsa-p256-next").Label
	servers[1].Token.Share(servers[0].Token, label)
	w.issued(web)
	if got := w.reference("web-ecdsa-p256").Label; got != label {
		t.Errorf("the key is %q, want %q, which was made first", got, label)
	}

	// With a member gone no key is made; the certificate stays.
	servers[1].Stop()
	w.change(web, func() { web.Annotations = map[string]string{v1alpha1.AnnotationRenew: "again"} })
	w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionTrue, v1alpha1.ReasonHSMNotReady)
	if got := w.reference("web-ecdsa-p256").Label; got != label {
		t.Errorf("the key is %q, want %q", got, label)
	}
}

const existing = "acme web 2026"

func withExisting(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, label string) *v1alpha1.PQCCertificate {
	c.Spec.KeyStorage.ExistingKeys = []v1alpha1.ExistingKey{{Algorithm: algorithm, Label: label}}
	return c
}

// A key that was there before is used when it is fit.
func TestWhichExistingKeysAreFit(t *testing.T) {
	w := newWorld(t)
	servers := w.withPool("pool", 2)
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyNotFound)

	fit, other, classical := w.key("ML-DSA-65"), w.key("ML-DSA-65"), w.key("ECDSA-P256")
	put := func(flags byte, keys ...crypto.Signer) {
		t.Helper()
		for i, k := range keys {
			servers[i].Token.Put(existing, k, flags)
		}
		w.change(web, func() { annotate(web, "test/wake", rand.Text()) })
	}
	for _, step := range []struct {
		flags  byte
		keys   []crypto.Signer
		reason string
		says   string
	}{
		{1, []crypto.Signer{classical, classical}, v1alpha1.ReasonKeyMismatch, "is of algorithm ECDSA-P256, and ML-DSA-65 is wanted"},
		{1, []crypto.Signer{fit, nil}, v1alpha1.ReasonKeyNotInEveryMember, `is in member "hsm-0" and not in "hsm-1"`},
		{3, []crypto.Signer{fit, fit}, v1alpha1.ReasonKeyNotProtected, "CKA_EXTRACTABLE true"},
		{1, []crypto.Signer{fit, other}, v1alpha1.ReasonKeyMismatch, `of member "hsm-1" is another one`},
	} {
		put(step.flags, step.keys...)
		if c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, step.reason); !strings.Contains(c.Message, step.says) {
			t.Errorf("%s: %s", step.reason, c.Message)
		}
	}
	put(1, fit, fit)
	w.issued(web)
	if r := w.reference("web-ml-dsa-65"); r.Label != existing {
		t.Errorf("it has the key %+v", r)
	}
}

// Whatever becomes of a certificate, the key that it was told to use stays.
func TestExistingKeysAreKept(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	token.Put(existing, w.key("ML-DSA-65"), 1)
	web := withExisting(inHSM(server("web", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", existing)
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	revision := int64(1)
	renew := func() string {
		t.Helper()
		revision++
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
		return w.reference("web-ml-dsa-65").Label
	}
	for range 2 {
		if label := renew(); label != existing {
			t.Errorf("it was renewed with the key %q", label)
		}
	}

	// Without it a key is made, which the next certificates replace.
	w.change(web, func() { web.Spec.KeyStorage.ExistingKeys = nil })
	revision++
	w.revision(web, revision)
	made := w.reference("web-ml-dsa-65").Label
	if made == existing {
		t.Error("no key was made")
	}
	// Another is told to use that one: it is not destroyed then.
	other := withExisting(inHSM(server("other", "self", "ML-DSA-65"), "pool"), "ML-DSA-65", made)
	other.Spec.CommonName = "www.example.com"
	w.create(other)
	w.issued(other)
	second := renew()
	third := renew()
	fourth := renew()
	for label, want := range map[string]bool{existing: true, made: true, second: false, third: true, fourth: true} {
		if token.Has(label) != want {
			t.Errorf("the token has the key %q: %t", label, !want)
		}
	}
}

// A key is used through another pool that leads to the same token, by the
// certificate that it was made for: renewals keep it, too.
func TestKeysAdoptedThroughAnotherPoolAreKept(t *testing.T) {
	w := newWorld(t)
	authority := hsmtest.NewAuthority(t)
	hsmd := hsmtest.Serve(t, authority)
	w.pool("a", authority, hsmd.Address)
	w.pool("b", authority, hsmd.Address)
	web := inHSM(server("web", "self", "ECDSA-P256"), "a")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	made := w.reference("web-ecdsa-p256").Label

	w.change(web, func() { withExisting(inHSM(web, "b"), "ECDSA-P256", made) })
	w.revision(web, 2)
	for revision := int64(3); revision <= 4; revision++ {
		w.pass(web, 2*time.Hour)
		w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, fmt.Sprint(revision)) })
		w.revision(web, revision)
		if r := w.reference("web-ecdsa-p256"); r != (keypair.Reference{Pool: "b", Label: made}) || !hsmd.Token.Has(made) {
			t.Fatalf("revision %d has the key %+v, which the token has: %t", revision, r, hsmd.Token.Has(made))
		}
	}
}

// key that was made elsewhere.
func (w *world) key(algorithm v1alpha1.KeyAlgorithm) crypto.Signer {
	w.t.Helper()
	k, err := pki.GenerateKey(algorithm)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// noPrivateKey looks into Secrets for one.
func (w *world) noPrivateKey(names ...string) {
	w.t.Helper()
	for _, name := range names {
		for key, data := range w.secret(name).Data {
			if bytes.Contains(data, []byte("PRIVATE KEY")) {
				w.t.Errorf("Secret %s has a private key in %s", name, key)
			}
		}
	}
}

// The keys of authorities stay in the HSM, too: issuers of both kinds sign with
// them, and a renewal of the authority's certificate keeps its key.
func TestAuthoritiesSignInTheHSM(t *testing.T) {
	w := newWorld(t)
	w.withPool("pool", 1)
	root := inHSM(ca("root", "self", "ML-DSA-87", "ECDSA-P384"), "pool")
	byCluster := &v1alpha1.PQCClusterIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca-" + w.namespace}, Spec: caIssuer("", "root-ml-dsa-87", "root-ecdsa-p384").Spec}
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-87", "root-ecdsa-p384"))
	if err := w.Create(t.Context(), byCluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Delete(context.Background(), byCluster) })
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	other := server("other", byCluster.Name, "ML-DSA-44", "RSA-2048")
	other.Spec.IssuerRef.Kind = issuers.ClusterKind
	w.create(web, other)
	for _, c := range []*v1alpha1.PQCCertificate{root, web, other} {
		w.issued(c)
	}
	w.noPrivateKey("root-ml-dsa-87", "root-ecdsa-p384")
	for _, name := range []string{"web-ml-dsa-65", "web-ecdsa-p256", "other-ml-dsa-44", "other-rsa-2048"} {
		w.verify(name, "www.example.com")
	}

	before := w.reference("root-ml-dsa-87")
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "2") })
	w.revision(root, 2)
	if after := w.reference("root-ml-dsa-87"); after != before {
		t.Errorf("the authority's key was %+v, and is %+v", before, after)
	}
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, "2") })
	w.revision(web, 2)
	w.verify("web-ml-dsa-65", "www.example.com")
	w.secretsStaySecret()
}

// Where the token was restored without an authority's key, or another one is
// there, no key of the old name is made: what it signed would be nobody's.
func TestAnAuthoritysKeyIsNotMadeAnew(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	root := inHSM(ca("root", "self", "ECDSA-P384"), "pool")
	w.create(selfSigned("self"), root)
	w.issued(root)
	lost := w.reference("root-ecdsa-p384")
	token.Put(lost.Label, nil, 0)
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "2") })
	c := w.condition(root, v1alpha1.ConditionIssuing, metav1.ConditionTrue, v1alpha1.ReasonKeyNotFound)
	if !strings.Contains(c.Message, "delete the certificate's Secret") || token.Has(lost.Label) {
		t.Errorf("%s; the token has the key: %t", c.Message, token.Has(lost.Label))
	}

	// Its owner begins anew.
	if err := w.Delete(t.Context(), w.secret("root-ecdsa-p384")); err != nil {
		t.Fatal(err)
	}
	w.revision(root, 2)
	if r := w.reference("root-ecdsa-p384"); r.Label == lost.Label || !token.Has(r.Label) {
		t.Errorf("it has the key %+v", r)
	}
}

// All of it with hsmd itself and a real token: keys of an authority and of its
// servers are made there, and OpenSSL finds the chains good.
func TestChainsOfARealToken(t *testing.T) {
	openssltest.Use(t)
	w := newWorld(t)
	authority := hsmtest.NewAuthority(t)
	pool := w.pool("pool", authority, hsmtest.Daemon(t, authority, fmt.Sprintf("[client %s]\nkeys = root-*, web-*\nmay = status, find, sign, generate, retire\n", hsmtest.ClientName)))
	w.up(pool)
	root := inHSM(ca("root", "self", "ML-DSA-65", "ECDSA-P256"), "pool")
	web := inHSM(server("web", "ca", "ML-DSA-44", "ECDSA-P384"), "pool")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-65", "root-ecdsa-p256"), web)
	w.issued(web)
	for _, name := range []string{"web-ml-dsa-44", "web-ecdsa-p384"} {
		data := w.secret(name).Data
		if err := openssl.VerifyChain(data["tls.crt"], nil, data["ca.crt"], "sslserver", w.clock.Now()); err != nil {
			t.Errorf("Secret %s: %v", name, err)
		}
	}
	w.noPrivateKey("root-ml-dsa-65", "root-ecdsa-p256", "web-ml-dsa-44", "web-ecdsa-p384")
	w.secretsStaySecret()
}

// up waits until the members of a pool have reached their tokens.
func (w *world) up(pool *v1alpha1.HSMPool) {
	w.t.Helper()
	members, err := (&hsmpool.Clients{}).Open(w.t.Context(), w, pool)
	if err != nil {
		w.t.Fatal(err)
	}
	testenv.Eventually(w.t, func(ctx context.Context) error {
		for _, o := range hsmpool.Observe(ctx, members) {
			if o.Problem != nil {
				return o.Problem
			}
		}
		return nil
	})
}
