package hsm_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
)

// patience is how long anything may take.
const patience = time.Minute

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func credentials(t *testing.T, a *hsmtest.Authority, name string) hsm.Credentials {
	t.Helper()
	c := hsm.Credentials{CA: a.PEM()}
	c.Certificate, c.Key = a.Issue(t, name)
	return c
}

func client(t *testing.T, a *hsmtest.Authority, address string) *hsm.Client {
	t.Helper()
	config, err := credentials(t, a, hsmtest.ClientName).Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(address, config, patience)
	t.Cleanup(c.Close)
	return c
}

// world is a server and its client.
func world(t *testing.T) (*hsmtest.Server, *hsm.Client) {
	t.Helper()
	a := hsmtest.NewAuthority(t)
	s := hsmtest.Serve(t, a)
	return s, client(t, a, s.Address)
}

func TestAKeysLife(t *testing.T) {
	s, c := world(t)
	ctx, key := patient(t), hsm.Key{Label: "web-1", ID: []byte{1}}
	made, err := c.Generate(ctx, "ML-DSA-65", key)
	if err != nil || !made.Sensitive || made.Extractable || !made.Local {
		t.Fatalf("generated %+v, %v", made, err)
	}
	if found, err := c.Find(ctx, key); err != nil || string(found.PublicKey) != string(made.PublicKey) {
		t.Fatalf("found %+v, %v", found, err)
	}
	if signature, err := c.Sign(ctx, key, hsm.MLDSA(""), []byte("message")); err != nil || len(signature) != 3309 {
		t.Fatalf("a signature of %d bytes, %v", len(signature), err)
	}
	if _, err := c.Generate(ctx, "ML-DSA-65", key); err == nil || !strings.Contains(err.Error(), "generate: CKR_TEMPLATE_INCONSISTENT: the label is taken") {
		t.Errorf("the label again: %v", err)
	}
	if status, err := c.Status(ctx); err != nil || status.State != v1alpha1.HSMMemberUp || status.Signatures != 1 || status.Latency.P99 != 1200 {
		t.Errorf("status %+v, %v", status, err)
	}
	if err := c.Retire(ctx, key); err != nil {
		t.Fatal(err)
	}
	_, err = c.Find(ctx, key)
	if hsm.CodeOf(err) != hsm.KeyHandleInvalid || !strings.HasPrefix(err.Error(), "hsmd at "+s.Address+": find: CKR_KEY_HANDLE_INVALID") {
		t.Errorf("what is retired: %v", err)
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections, want 1 for all", s.Accepted())
	}
}

// Tokens take minutes for some keys; how soon a member is to sign is another
// matter.
func TestAKeyMayTakeLongerThanASignature(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	s := hsmtest.Serve(t, a)
	s.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) { return nil, operation == 2 }
	config, err := credentials(t, a, hsmtest.ClientName).Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(s.Address, config, time.Nanosecond)
	t.Cleanup(c.Close)
	key := hsm.Key{Label: "web"}
	if _, err := c.Generate(patient(t), "ECDSA-P256", key); err != nil {
		t.Errorf("a key that is made within minutes: %v", err)
	}
	if _, err := c.Find(patient(t), key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what has a nanosecond: %v", err)
	}
}

// Answers come in whatever order; each goes to who asked.
func TestManyInFlightAreAnsweredInAnyOrder(t *testing.T) {
	s, c := world(t)
	const many = 40
	var arrived sync.WaitGroup
	arrived.Add(many)
	s.Intercept = func(_ net.Conn, operation byte, body []byte) (*hsmtest.Answer, bool) {
		arrived.Done()
		arrived.Wait() // nobody is answered until all have asked
		label := string(body[2 : len(body)-2])
		return &hsmtest.Answer{Body: fmt.Appendf(nil, "\x00%c%s\x05", len(label), label)}, true
	}
	ctx := patient(t)
	var done sync.WaitGroup
	for i := range many {
		done.Go(func() {
			label := fmt.Sprintf("key-%d", i)
			if o, err := c.Find(ctx, hsm.Key{Label: label}); err != nil || string(o.PublicKey) != label {
				t.Errorf("%s: %q, %v", label, o.PublicKey, err)
			}
		})
	}
	done.Wait()
	if s.Accepted() != 1 {
		t.Errorf("%d connections, want 1 for all", s.Accepted())
	}
}

func TestWhoGivesUpHoldsUpNobody(t *testing.T) {
	s, c := world(t)
	asked, release := make(chan struct{}), make(chan struct{})
	s.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation == 2 { // find
			close(asked)
			<-release
		}
		return nil, false
	}
	ctx, cancel := context.WithCancel(patient(t))
	gaveUp := make(chan error)
	go func() {
		_, err := c.Find(ctx, hsm.Key{Label: "web"})
		gaveUp <- err
	}()
	<-asked
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) || !errors.Is(err, hsm.ErrUnreachable) {
		t.Errorf("who gave up: %v", err)
	}
	if _, err := c.Status(patient(t)); err != nil {
		t.Errorf("another, while the first is not answered: %v", err)
	}
	close(release) // the late answer
	for range 3 {
		if _, err := c.Status(patient(t)); err != nil {
			t.Errorf("after the late answer: %v", err)
		}
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections, want 1 for all", s.Accepted())
	}
}

// hsmd closes idle connections, and all when it restarts.
func TestAConnectionThatEndedIsMadeAnew(t *testing.T) {
	s, c := world(t)
	ctx := patient(t)
	for i := range 5 {
		if _, err := c.Status(ctx); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		s.Disconnect()
	}
	if s.Accepted() < 5 {
		t.Errorf("%d connections, want one for each round", s.Accepted())
	}
}

// A key pair that may be there already is not asked for again.
func TestOnlyWhatChangesNothingIsAskedTwice(t *testing.T) {
	s, c := world(t)
	ctx := patient(t)
	var mu sync.Mutex
	asked := map[byte]int{}
	s.Intercept = func(conn net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		mu.Lock()
		defer mu.Unlock()
		asked[operation]++
		if operation == 1 {
			return nil, false
		}
		_ = conn.Close()
		return nil, true
	}
	key := hsm.Key{Label: "web"}
	for operation, ask := range map[byte]func() error{
		2: func() error { _, err := c.Find(ctx, key); return err },
		3: func() error { _, err := c.Sign(ctx, key, hsm.ECDSA(), make([]byte, 32)); return err },
		4: func() error { _, err := c.Generate(ctx, "ECDSA-P256", key); return err },
		5: func() error { return c.Retire(ctx, key) },
	} {
		if _, err := c.Status(ctx); err != nil { // a connection that is there
			t.Fatal(err)
		}
		if err := ask(); !errors.Is(err, hsm.ErrUnreachable) || !strings.Contains(err.Error(), "the connection ended") {
			t.Errorf("operation %d: %v", operation, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if asked[2] != 2 || asked[3] != 2 || asked[4] != 1 || asked[5] != 1 {
		t.Errorf("asked %v, want find and sign twice, generate and retire once", asked)
	}
}

func TestWhyThereIsNoAnswer(t *testing.T) {
	ours, others := hsmtest.NewAuthority(t), hsmtest.NewAuthority(t)
	good := hsmtest.Serve(t, ours)
	gone := hsmtest.Serve(t, ours)
	gone.Stop()
	classical := hsmtest.Serve(t, ours, func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} })
	silent := hsmtest.Serve(t, ours, func(c *tls.Config) { c.NextProtos = nil })
	wrong := hsmtest.Serve(t, ours)
	wrong.Intercept = func(conn net.Conn, _ byte, _ []byte) (*hsmtest.Answer, bool) {
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		return nil, true
	}
	stranger := hsmtest.Serve(t, ours)
	stranger.Intercept = func(conn net.Conn, _ byte, _ []byte) (*hsmtest.Answer, bool) {
		_, _ = io.WriteString(conn, "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x63\x00")
		return nil, true
	}
	for name, c := range map[string]struct {
		address string
		trust   *hsmtest.Authority
		show    *hsmtest.Authority
		server  string
		want    error
		says    string
	}{
		"nobody listens":                      {gone.Address, ours, ours, hsmtest.ServerName, hsm.ErrUnreachable, "refused"},
		"another authority":                   {good.Address, others, ours, hsmtest.ServerName, hsm.ErrServerCertificate, "unknown authority"},
		"another name":                        {good.Address, ours, ours, "hsm-b.tls.svc", hsm.ErrServerCertificate, "hsm-b.tls.svc"},
		"a certificate that it does not know": {good.Address, ours, others, hsmtest.ServerName, hsm.ErrClientRefused, "tls:"},
		"no hybrid key exchange":              {classical.Address, ours, ours, hsmtest.ServerName, hsm.ErrClientRefused, "handshake failure"},
		"another protocol by ALPN":            {silent.Address, ours, ours, hsmtest.ServerName, hsm.ErrProtocol, "ALPN"},
		"answers of another protocol":         {wrong.Address, ours, ours, hsmtest.ServerName, hsm.ErrProtocol, "a frame says"},
		"an answer that nobody waits for":     {stranger.Address, ours, ours, hsmtest.ServerName, hsm.ErrProtocol, "request 99, which was not made"},
	} {
		t.Run(name, func(t *testing.T) {
			show := credentials(t, c.show, hsmtest.ClientName)
			show.CA = c.trust.PEM()
			config, err := show.Config(c.server)
			if err != nil {
				t.Fatal(err)
			}
			cl := hsm.New(c.address, config, patience)
			defer cl.Close()
			_, err = cl.Status(patient(t))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "hsmd at "+c.address+": ") {
				t.Errorf("%v\nwant %q, and %q in it", err, c.want, c.says)
			}
		})
	}
}

// An answer to no request says why the connection is closed.
func TestADaemonThatIsFullSaysSo(t *testing.T) {
	s, c := world(t)
	s.Intercept = func(conn net.Conn, _ byte, _ []byte) (*hsmtest.Answer, bool) {
		_, _ = io.WriteString(conn, "\x00\x00\x00\x17"+"\x00\x00\x00\x00\x00\x00\x00\x00"+"\x01"+"\x00\x00\x00\x00\x00\x00\x00\xb1"+"\x00\x04full")
		_ = conn.Close()
		return nil, true
	}
	_, err := c.Status(patient(t))
	if hsm.CodeOf(err) != hsm.SessionCount || err.Error() != "hsmd at "+s.Address+": status: CKR_SESSION_COUNT: full" {
		t.Errorf("%v", err)
	}
}

// A daemon that reads nothing and says nothing costs the caller its time, and
// no more.
func TestASilentServerIsUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	config, err := credentials(t, hsmtest.NewAuthority(t), hsmtest.ClientName).Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(listener.Addr().String(), config, 50*time.Millisecond)
	defer c.Close()
	if _, err := c.Status(t.Context()); !errors.Is(err, hsm.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that does not shake hands: %v", err)
	}
}

// However many ask an hsmd that hangs, that costs one time-out, until it says how it
// is.
func TestAnHSMDThatHangsIsAskedOnce(t *testing.T) {
	t.Parallel() // it waits, mostly
	a := hsmtest.NewAuthority(t)
	s := hsmtest.Serve(t, a)
	var asked atomic.Int64
	var hanging atomic.Bool
	s.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		if operation == 1 {
			return nil, false
		}
		asked.Add(1)
		return nil, hanging.Load()
	}
	config, err := credentials(t, a, hsmtest.ClientName).Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(s.Address, config, 10*time.Second) // for the last answer, too, and a machine may stand still: no search has longer
	t.Cleanup(c.Close)
	ctx, key := patient(t), hsm.Key{Label: "web"}
	answers := func() {
		t.Helper()
		for {
			_, err := c.Status(ctx)
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	find := func() error { _, err := c.Find(ctx, key); return err }
	answers()

	hanging.Store(true)
	first := find()
	if !errors.Is(first, hsm.ErrUnreachable) || !errors.Is(first, context.DeadlineExceeded) {
		t.Fatalf("who asked first: %v", first)
	}
	for operation, ask := range map[string]func() error{
		"find":     find,
		"sign":     func() error { _, err := c.Sign(ctx, key, hsm.ECDSA(), make([]byte, 32)); return err },
		"generate": func() error { _, err := c.Generate(ctx, "ECDSA-P256", key); return err },
		"retire":   func() error { return c.Retire(ctx, key) },
	} {
		if err := ask(); !errors.Is(err, first) {
			t.Errorf("%s, after that: %v, want %v", operation, err, first)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked %d times, want once", n)
	}
	answers()
	hanging.Store(false)
	if err := find(); hsm.CodeOf(err) != hsm.KeyHandleInvalid || asked.Load() != 2 {
		t.Errorf("when it has said how it is: %v; it was asked %d times, want twice", err, asked.Load())
	}
}

// That is no time-out of the member's.
func TestWhoGivesUpSoonerSaysNothingOfTheHSMD(t *testing.T) {
	s, c := world(t)
	var hanging atomic.Bool
	hanging.Store(true)
	s.Intercept = func(net.Conn, byte, []byte) (*hsmtest.Answer, bool) { return nil, hanging.Load() }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Find(ctx, hsm.Key{Label: "web"}); !errors.Is(err, hsm.ErrUnreachable) {
		t.Errorf("who gave up: %v", err)
	}
	hanging.Store(false)
	if _, err := c.Find(patient(t), hsm.Key{Label: "web"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("another: %v", err)
	}
}

// A key that is destroyed waits until another one is made, which takes minutes: that is no hang, and others are answered.
func TestADestructionThatWaitsIsNoHang(t *testing.T) {
	t.Parallel() // it waits, mostly
	a := hsmtest.NewAuthority(t)
	s := hsmtest.Serve(t, a)
	s.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) { return nil, operation == 5 }
	config, err := credentials(t, a, hsmtest.ClientName).Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(s.Address, config, 10*time.Second)
	t.Cleanup(c.Close)
	key := hsm.Key{Label: "web"}
	if err := c.Retire(patient(t), key); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it waits: %v", err)
	}
	if _, err := c.Find(patient(t), key); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("who asks for a key meanwhile: %v", err)
	}
}

func TestCloseEndsWhatWaits(t *testing.T) {
	s, c := world(t)
	asked, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	s.Intercept = func(net.Conn, byte, []byte) (*hsmtest.Answer, bool) {
		close(asked)
		<-end
		return nil, true
	}
	waiting := make(chan error)
	go func() { waiting <- c.Retire(patient(t), hsm.Key{Label: "web"}) }()
	<-asked
	c.Close()
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("who waited: %v", err)
	}
	if _, err := c.Status(patient(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("who asks then: %v", err)
	}
}

func TestCredentialsThatDoNotFitAreRefused(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	good := credentials(t, a, hsmtest.ClientName)
	other := credentials(t, a, hsmtest.ClientName)
	for name, c := range map[string]struct {
		credentials hsm.Credentials
		want        string
	}{
		"no authority":  {hsm.Credentials{Certificate: good.Certificate, Key: good.Key}, "ca.crt holds no certificate"},
		"no key":        {hsm.Credentials{CA: good.CA, Certificate: good.Certificate}, "tls.crt and tls.key"},
		"another's key": {hsm.Credentials{CA: good.CA, Certificate: good.Certificate, Key: other.Key}, "private key does not match"},
	} {
		if _, err := c.credentials.Config(hsmtest.ServerName); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
