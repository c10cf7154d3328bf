package hsmpool

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/crypto/pkcs11"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
)

func down(lastError string) hsm.Status {
	return hsm.Status{Token: "gw", State: v1alpha1.HSMMemberDown, LastError: lastError}
}

func TestEachFailureHasItsReasonAndRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		status hsm.Status
		err    error
		state  v1alpha1.HSMMemberState
		reason string
		says   string
	}{
		"up":            {status: hsm.Status{State: v1alpha1.HSMMemberUp}, state: v1alpha1.HSMMemberUp},
		"starting":      {status: hsm.Status{State: v1alpha1.HSMMemberStarting}, state: v1alpha1.HSMMemberStarting, reason: v1alpha1.ReasonPending, says: "wait"},
		"no answer":     {err: fmt.Errorf("hsmd at a:1: %w", hsm.ErrUnreachable), state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMUnreachable, says: "NetworkPolicy"},
		"its name":      {err: hsm.ErrServerCertificate, state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMNotTrusted, says: "serverName"},
		"our name":      {err: hsm.ErrClientRefused, state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMRefusesAccess, says: "client-ca-file"},
		"a web server":  {err: hsm.ErrProtocol, state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMProtocol, says: "address"},
		"not allowed":   {err: &hsm.Refusal{Code: hsm.ActionProhibited}, state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMRefusesAccess, says: "[client]"},
		"it ends":       {err: fmt.Errorf("%w: %w", hsm.ErrUnreachable, io.EOF), state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMUnreachable, says: "NetworkPolicy"},
		"cut off":       {err: fmt.Errorf("hsmd at a:1: %w", hsm.ErrCutOff), state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMUnreachable, says: "it is ending"},
		"full":          {err: &hsm.Refusal{Code: hsm.SessionCount}, state: v1alpha1.HSMMemberUnknown, reason: v1alpha1.ReasonHSMUnreachable, says: "raise connections"},
		"a wrong PIN":   {status: down("C_Login with the PIN in /pin: CKR_PIN_INCORRECT (0xa0)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonPINWrong, says: "tokens lock themselves"},
		"a locked PIN":  {status: down("C_Login: CKR_PIN_LOCKED (0xa4)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonPINLocked, says: "security officer"},
		"an old PIN":    {status: down("C_Login: CKR_PIN_EXPIRED (0xa3)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonPINExpired, says: "a new PIN"},
		"no PIN at all": {status: down("C_Login: CKR_USER_PIN_NOT_INITIALIZED (0x102)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonPINMissing, says: "set a PIN"},
		"no PIN file":   {status: down("pin-file /pin: entity not found: CKR_GENERAL_ERROR (0x5)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonPINMissing, says: "pin-file"},
		"no token":      {status: down("the module shows no token with label gw: CKR_TOKEN_NOT_PRESENT (0xe0)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonTokenNotFound, says: "token or serial in the daemon's configuration"},
		"no library":    {status: down("/opt/lib.so: cannot open shared object file: CKR_LIBRARY_LOAD_FAILED (0x1b7)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonLibraryNotLoaded, says: "PKCS #11 library that is there, with all that it needs: module in the daemon's configuration"},
		"a sick token":  {status: down("C_Sign: CKR_DEVICE_ERROR (0x30)"), state: v1alpha1.HSMMemberDown, reason: v1alpha1.ReasonTokenFailed, says: `token "gw": C_Sign: CKR_DEVICE_ERROR`},
	} {
		o := judge(Member{Name: "hsm-a", in: ofDaemon}, c.status, c.err)
		switch {
		case o.State != c.state || o.Member != "hsm-a":
			t.Errorf("%s: %+v, want the state %s", name, o, c.state)
		case c.reason == "" && o.Problem != nil:
			t.Errorf("%s: a problem: %v", name, o.Problem)
		case c.reason != "" && (o.Problem == nil || o.Problem.Reason != c.reason || !strings.HasPrefix(o.Problem.Message, `member "hsm-a": `) || !strings.Contains(o.Problem.Message, c.says)):
			t.Errorf("%s: %+v, want %s, saying %q", name, o.Problem, c.reason, c.says)
		}
	}
}

// A PIN that the token refuses is not tried again: that it was is what has to be told.
func TestEachRefusalOfAPINIsOne(t *testing.T) {
	n := 0
	for _, e := range pkcs11.Errors {
		if e.Verdict != pkcs11.PIN {
			continue
		}
		n++
		o := judge(Member{Name: "hsm-a", in: ofDaemon}, down(fmt.Sprintf("C_Login: %s (0x%x)", e.Name, e.Code)), nil)
		if o.Problem == nil || !strings.HasPrefix(o.Problem.Reason, "PIN") || !strings.Contains(o.Problem.Message, "put ") {
			t.Errorf("%s: %+v", e.Name, o.Problem)
		}
	}
	if n < 7 {
		t.Errorf("%d codes", n)
	}
}

func TestAClientIsKeptUntilWhatItIsMadeOfChanges(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	server := hsmtest.Serve(t, a)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "hsm-client"}, Data: map[string][]byte{"ca.crt": a.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = a.Issue(t, hsmtest.ClientName)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "pool"}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{{
		Name:   "hsm-a",
		Remote: &v1alpha1.RemoteHSM{Address: v1alpha1.StoreAddress(server.Address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: "hsm-client"}},
	}}}}
	var clients Clients
	open := func(objects ...client.Object) Member {
		t.Helper()
		members, err := clients.Open(t.Context(), fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).Build(), pool)
		if err != nil || len(members) != 1 || members[0].Name != "hsm-a" {
			t.Fatalf("%+v, %v", members, err)
		}
		return members[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if m := open(); m.Problem == nil || m.Problem.Reason != v1alpha1.ReasonSecretNotFound || !strings.Contains(m.Problem.Message, `spec.members[hsm-a].remote.tlsSecretRef: Secret "hsm-client" is not there`) {
		t.Errorf("without the Secret: %+v", m.Problem)
	}
	bad := secret.DeepCopy()
	delete(bad.Data, "ca.crt")
	if m := open(bad); m.Problem == nil || m.Problem.Reason != v1alpha1.ReasonSecretInvalid || !strings.Contains(m.Problem.Message, "ca.crt holds no certificate") {
		t.Errorf("without an authority: %+v", m.Problem)
	}
	first := open(secret)
	if o := Observe(ctx, []Member{first}); o[0].State != v1alpha1.HSMMemberUp || o[0].Status.Token != "gw" {
		t.Errorf("observed %+v", o)
	}
	if again := open(secret); again.Client != first.Client {
		t.Error("another client for the same member")
	}
	renewed := secret.DeepCopy()
	renewed.Data["tls.crt"], renewed.Data["tls.key"] = a.Issue(t, hsmtest.ClientName)
	second := open(renewed)
	if second.Client == first.Client {
		t.Error("the client of before, with a new certificate in the Secret")
	}
	pool.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second}
	third := open(renewed)
	if third.Client == second.Client {
		t.Error("the client of before, with another time-out")
	}
	clients.Close(client.ObjectKeyFromObject(pool))
	if open(renewed).Client == third.Client {
		t.Error("the client of before, after its pool was closed")
	}
}
