package hsmpool

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

// pooled is a pool of stand-ins for hsmd, and its keys.
func pooled(t *testing.T, members int) ([]*hsmtest.Server, Keys) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	a := hsmtest.NewAuthority(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "client"}, Data: map[string][]byte{"ca.crt": a.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = a.Issue(t, hsmtest.ClientName)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "pool"}}
	pool.Spec.Timeout = &metav1.Duration{Duration: time.Minute}
	var servers []*hsmtest.Server
	for i := range members {
		s := hsmtest.Serve(t, a)
		servers = append(servers, s)
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: fmt.Sprintf("hsm-%d", i), Remote: &v1alpha1.RemoteHSM{
			Address: v1alpha1.StoreAddress(s.Address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: "client"}}})
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(secret, pool).Build()
	return servers, Keys{Clients: &Clients{}, Pools: reader, Secrets: reader, Namespace: "tls"}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

var web = keypair.Reference{Pool: "pool", Label: "web-1"}

func expect(t *testing.T, err error, reason, says string) {
	t.Helper()
	p, ok := conditions.AsProblem(err)
	if !ok || p.Reason != reason || !strings.Contains(p.Message, says) || p.After == 0 {
		t.Errorf("%+v (%v)\nwant %s, saying %q, and another look", p, err, reason, says)
	}
}

func TestAKeyIsMadeOnceAndDestroyed(t *testing.T) {
	servers, keys := pooled(t, 1)
	ctx := patient(t)
	_, err := keys.Find(ctx, web)
	expect(t, err, v1alpha1.ReasonKeyNotFound, `no member has key "web-1"`)

	first, err := keys.Provide(ctx, web, "ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	again, err := keys.Provide(ctx, web, "ECDSA-P256")
	if err != nil || !pki.SameKey(first.Public(), again.Public()) {
		t.Errorf("another key the second time (%v)", err)
	}
	found, err := keys.Find(ctx, web)
	if err != nil || !pki.SameKey(first.Public(), found.Public()) {
		t.Errorf("another key is found (%v)", err)
	}
	digest := sha256.Sum256([]byte("message"))
	if _, err := found.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
		t.Error(err)
	}
	for _, get := range []func(context.Context, keypair.Reference, v1alpha1.KeyAlgorithm) (crypto.Signer, error){keys.Provide, keys.Use, keys.Keep} {
		if _, err := get(ctx, web, "ECDSA-P256"); err != nil {
			t.Error(err)
		}
		_, err = get(ctx, web, "ML-DSA-65")
		expect(t, err, v1alpha1.ReasonKeyMismatch, "is of algorithm ECDSA-P256, and ML-DSA-65 is wanted")
	}

	for range 2 { // what is not there is retired
		if err := keys.Retire(ctx, web); err != nil || servers[0].Token.Has("web-1") {
			t.Errorf("retired: %v; it is there: %t", err, servers[0].Token.Has("web-1"))
		}
	}
}

func TestAKeyIsUsedWhenEveryMemberHasIt(t *testing.T) {
	servers, keys := pooled(t, 2)
	ctx := patient(t)
	_, err := keys.Provide(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonKeyNotInEveryMember, `is in member "hsm-0" and not in "hsm-1"`)
	if servers[1].Token.Has("web-1") {
		t.Error("the second member made a key of its own")
	}
	// To sign once, the member that has it is enough.
	if _, err := keys.Find(ctx, web); err != nil {
		t.Error(err)
	}

	other, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	servers[1].Token.Put("web-1", other, 1)
	_, err = keys.Provide(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonKeyMismatch, `key "web-1" of member "hsm-1" is another one than that of member "hsm-0"`)

	servers[1].Token.Share(servers[0].Token, "web-1")
	if _, err := keys.Provide(ctx, web, "ECDSA-P256"); err != nil {
		t.Error(err)
	}
	// One that is away had it, or will: it is used on, and nothing new is issued.
	servers[0].Stop()
	if _, err := keys.Keep(ctx, web, "ECDSA-P256"); err != nil {
		t.Error(err)
	}
	for _, get := range []func(context.Context, keypair.Reference, v1alpha1.KeyAlgorithm) (crypto.Signer, error){keys.Provide, keys.Use} {
		_, err = get(ctx, web, "ECDSA-P256")
		expect(t, err, v1alpha1.ReasonHSMNotReady, servers[0].Address)
	}
	expect(t, keys.Retire(ctx, web), v1alpha1.ReasonHSMNotReady, servers[0].Address)
	if servers[1].Token.Has("web-1") {
		t.Error("the member that answers keeps the key")
	}
}

// That a key is not in every member is not forgotten when one of those that
// lack it goes away.
func TestAMemberThatLacksAKeyAndGoesAwayLacksIt(t *testing.T) {
	servers, keys := pooled(t, 2)
	ctx := patient(t)
	_, err := keys.Provide(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonKeyNotInEveryMember, `not in "hsm-1"`)
	servers[1].Stop()
	_, err = keys.Provide(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonHSMNotReady, `whether every member has key "web-1" cannot be told`)
}

// The key of a certificate that is replaced is not made anew under its name.
func TestAKeyThatIsKeptIsNeverMade(t *testing.T) {
	servers, keys := pooled(t, 2)
	ctx := patient(t)
	_, err := keys.Keep(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonKeyNotFound, "delete the certificate's Secret")
	servers[0].Stop()
	_, err = keys.Keep(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonHSMNotReady, `whether key "web-1" is there cannot be told`)
	if servers[0].Token.Has("web-1") || servers[1].Token.Has("web-1") {
		t.Error("a key was made")
	}
}

// A member that is away might have the key.
func TestNoKeyIsMadeWhileAMemberIsAway(t *testing.T) {
	servers, keys := pooled(t, 2)
	servers[1].Stop()
	_, err := keys.Provide(patient(t), web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonHSMNotReady, servers[1].Address)
	if servers[0].Token.Has("web-1") {
		t.Error("a key was made")
	}
}

func TestAKeyThatCouldLeaveItsTokenIsNotUsed(t *testing.T) {
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	for flags, says := range map[byte]string{0: "CKA_SENSITIVE false", 3: "CKA_EXTRACTABLE true", 4: "CKA_SENSITIVE false"} {
		servers, keys := pooled(t, 1)
		servers[0].Token.Put("web-1", key, flags)
		_, err := keys.Find(patient(t), web)
		expect(t, err, v1alpha1.ReasonKeyNotProtected, says)
	}
}

func TestWhyNoKeyIsMade(t *testing.T) {
	servers, keys := pooled(t, 1)
	ctx := patient(t)
	_, err := keys.Find(ctx, keypair.Reference{Pool: "other", Label: "web-1"})
	expect(t, err, v1alpha1.ReasonHSMPoolNotFound, `HSMPool "other" is not there in namespace "tls"`)
	servers[0].Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		return hsmtest.Refuse(0x1B, "client qtls-operator may not generate"), operation == 4
	}
	_, err = keys.Provide(ctx, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonHSMNotReady, "CKR_ACTION_PROHIBITED: client qtls-operator may not generate")
}

// slow has the first member take its time for a key: asked is called when it is
// asked for one, and release lets it go on with its answer.
func slow(t *testing.T, s *hsmtest.Server, asked func(), answer *hsmtest.Answer) (times *atomic.Int64, release func()) {
	times, released := new(atomic.Int64), make(chan struct{})
	s.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation != 4 {
			return nil, false
		}
		times.Add(1)
		asked()
		select {
		case <-released:
		case <-t.Context().Done():
		}
		return answer, answer != nil
	}
	return times, sync.OnceFunc(func() { close(released) })
}

// A token may take minutes for a key. Nobody waits for that, and no second key is
// asked for meanwhile; nor is one destroyed before it is there.
func TestAKeyThatTakesLongIsMadeOnce(t *testing.T) {
	servers, keys := pooled(t, 1)
	ctx := patient(t)
	impatient, leave := context.WithCancel(ctx)
	times, release := slow(t, servers[0], leave, nil)
	defer release()

	const says = `HSMPool "pool", member "hsm-0": key "web-1" is being made since 2`
	_, err := keys.Provide(impatient, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonIssuing, says)
	_, again := keys.Provide(ctx, web, "ECDSA-P256")
	if again == nil || again.Error() != err.Error() {
		t.Errorf("the next look says %v, and the one before %v", again, err)
	}
	expect(t, keys.Retire(ctx, web), v1alpha1.ReasonIssuing, says)
	release()
	for {
		key, err := keys.Provide(ctx, web, "ECDSA-P256")
		if p, ok := conditions.AsProblem(err); ok && p.Reason == v1alpha1.ReasonIssuing && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil || key == nil || times.Load() != 1 {
			t.Errorf("%v; it was asked for %d times, want once", err, times.Load())
		}
		break
	}
	if err := keys.Retire(ctx, web); err != nil || servers[0].Token.Has("web-1") {
		t.Errorf("retired: %v; it is there: %t", err, servers[0].Token.Has("web-1"))
	}
}

// Why a key could not be made is told when it is looked next, and then another is
// asked for.
func TestAKeyThatTakesLongAndFails(t *testing.T) {
	servers, keys := pooled(t, 1)
	ctx := patient(t)
	impatient, leave := context.WithCancel(ctx)
	times, release := slow(t, servers[0], leave, hsmtest.Refuse(0x30, "the token is away"))
	defer release()
	_, err := keys.Provide(impatient, web, "ECDSA-P256")
	expect(t, err, v1alpha1.ReasonIssuing, "is being made since")
	release()
	for try := int64(1); try <= 2; try++ {
		for {
			_, err = keys.Provide(ctx, web, "ECDSA-P256")
			if p, ok := conditions.AsProblem(err); !ok || p.Reason != v1alpha1.ReasonIssuing || ctx.Err() != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		expect(t, err, v1alpha1.ReasonHSMNotReady, `HSMPool "pool", member "hsm-0": key "web-1" could not be made: hsmd at `)
		expect(t, err, v1alpha1.ReasonHSMNotReady, "the token is away")
		if times.Load() != try {
			t.Errorf("it was asked for %d times, want %d", times.Load(), try)
		}
	}
}

// Members are asked for a key when it is looked for first, and when the pool
// was changed; not for each signature.
func TestKeysThatWereFoundAreRemembered(t *testing.T) {
	servers, keys := pooled(t, 2)
	ctx := patient(t)
	var asked atomic.Int64
	servers[1].Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation == 2 {
			asked.Add(1)
		}
		return nil, false
	}
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		s.Token.Put("web-1", key, 1)
	}
	keys.Found = &Found{}
	sign := func() error {
		t.Helper()
		once, cancel := context.WithCancel(ctx) // as long as a reconciliation takes
		defer cancel()
		found, err := keys.Find(once, web)
		if err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256([]byte("message"))
		_, err = found.Sign(rand.Reader, digest[:], crypto.SHA256)
		return err
	}
	for range 3 {
		if err := sign(); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the member was asked for the key %d times, want once", n)
	}
	// A member that is gone: the other one signs, with what was found.
	servers[0].Stop()
	if err := sign(); err != nil {
		t.Error(err)
	}
	// Nobody signs: that is for later, and says why.
	servers[1].Stop()
	expect(t, sign(), v1alpha1.ReasonHSMNotReady, "no member signs")

	pool := &v1alpha1.HSMPool{}
	if err := keys.Pools.Get(ctx, client.ObjectKey{Namespace: "tls", Name: "pool"}, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Timeout = &metav1.Duration{Duration: 2 * time.Minute}
	if err := keys.Pools.(client.Client).Update(ctx, pool); err != nil {
		t.Fatal(err)
	}
	_, err = keys.Find(ctx, web)
	expect(t, err, v1alpha1.ReasonHSMNotReady, `whether key "web-1" is there cannot be told`)
}

// Whoever asks for keys of a pool that hangs waits for one time-out together.
func TestAMemberThatHangsCostsOneTimeOut(t *testing.T) {
	t.Parallel() // it waits, mostly
	servers, keys := pooled(t, 1)
	ctx := patient(t)
	pool := &v1alpha1.HSMPool{}
	if err := keys.Pools.Get(ctx, client.ObjectKey{Namespace: "tls", Name: "pool"}, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Timeout = &metav1.Duration{Duration: 10 * time.Second} // for the last answer, too, and a machine may stand still: no search has longer
	if err := keys.Pools.(client.Client).Update(ctx, pool); err != nil {
		t.Fatal(err)
	}
	members, err := keys.Clients.Open(ctx, keys.Secrets, pool)
	if err != nil {
		t.Fatal(err)
	}
	up := func() {
		t.Helper()
		for o := Observe(ctx, members); o[0].State != v1alpha1.HSMMemberUp; o = Observe(ctx, members) {
			if ctx.Err() != nil {
				t.Fatal(o[0].Problem)
			}
		}
	}
	var asked atomic.Int64
	var hanging atomic.Bool
	servers[0].Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation == 2 {
			asked.Add(1)
		}
		return nil, operation == 2 && hanging.Load()
	}
	up()
	hanging.Store(true)
	for range 3 {
		_, err := keys.Find(ctx, web)
		expect(t, err, v1alpha1.ReasonHSMNotReady, `whether key "web-1" is there cannot be told`)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked %d times, want once", n)
	}
	hanging.Store(false)
	up() // as the pool's controller asks, every few seconds
	_, err = keys.Find(ctx, web)
	expect(t, err, v1alpha1.ReasonKeyNotFound, `no member has key "web-1"`)
}

// What every member would refuse is not asked for again and again.
func TestARequestThatIsAtFaultIsNoProblemOfTheMoment(t *testing.T) {
	_, keys := pooled(t, 1)
	key, err := keys.Provide(patient(t), web, "ML-DSA-44")
	if err != nil {
		t.Fatal(err)
	}
	_, err = key.Sign(rand.Reader, make([]byte, 65535), crypto.Hash(0))
	if _, told := conditions.AsProblem(err); err == nil || told || !strings.Contains(err.Error(), "more than a request may have") {
		t.Errorf("a message that no frame has room for: %v", err)
	}
}
