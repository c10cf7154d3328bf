package request

import (
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/pki"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// requestFor makes an approved request for a key of an algorithm.
func requestFor(t *testing.T, algorithm v1alpha1.KeyAlgorithm, change ...func(*cmapi.CertificateRequest)) *cmapi.CertificateRequest {
	t.Helper()
	key, err := pki.GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, pki.Names{DNSNames: []string{"www.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	cr := &cmapi.CertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "uid-1", ResourceVersion: "42"},
		Spec:       cmapi.CertificateRequestSpec{Request: request, IssuerRef: cmmeta.IssuerReference{Group: v1alpha1.GroupName, Kind: "PQCIssuer", Name: "ca"}},
	}
	for _, f := range change {
		f(cr)
	}
	return cr
}

func with(kind cmapi.CertificateRequestConditionType, status cmmeta.ConditionStatus, reason string) func(*cmapi.CertificateRequest) {
	return func(cr *cmapi.CertificateRequest) {
		cr.Status.Conditions = append(cr.Status.Conditions, cmapi.CertificateRequestCondition{Type: kind, Status: status, Reason: reason})
	}
}

func TestWhichRequestsAreOpen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*cmapi.CertificateRequest)
		open   bool
	}{
		"new":                 {func(*cmapi.CertificateRequest) {}, true},
		"approved":            {with(cmapi.CertificateRequestConditionApproved, "True", ""), true},
		"denied":              {with(cmapi.CertificateRequestConditionDenied, "True", ""), true}, // its end is not written yet
		"pending":             {with(cmapi.CertificateRequestConditionReady, "False", "Pending"), true},
		"of another group":    {func(cr *cmapi.CertificateRequest) { cr.Spec.IssuerRef.Group = "cert-manager.io" }, false},
		"signed":              {func(cr *cmapi.CertificateRequest) { cr.Status.Certificate = []byte("x") }, false},
		"said to be ready":    {with(cmapi.CertificateRequestConditionReady, "True", "Issued"), false},
		"failed":              {with(cmapi.CertificateRequestConditionReady, "False", "Failed"), false},
		"said to be denied":   {with(cmapi.CertificateRequestConditionReady, "False", "Denied"), false},
		"failed at a time":    {func(cr *cmapi.CertificateRequest) { cr.Status.FailureTime = new(metav1.NewTime(now)) }, false},
		"found to be invalid": {with(cmapi.CertificateRequestConditionInvalidRequest, "True", ""), false},
	} {
		if got := isOpen(requestFor(t, "ECDSA-P256", c.change)); got != c.open {
			t.Errorf("%s: open %t", name, got)
		}
	}
}

func TestOnlyTheApprovedSpecDecides(t *testing.T) {
	order, err := orderOf(requestFor(t, "ECDSA-P256", func(cr *cmapi.CertificateRequest) {
		cr.Spec.Duration = &metav1.Duration{Duration: time.Hour}
		cr.Spec.IsCA = true
		cr.Spec.Usages = []cmapi.KeyUsage{"digital signature", "signing", "client auth", "server auth", "client auth"}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if order.Duration != time.Hour || !order.IsCA || order.KeyUsage != x509.KeyUsageDigitalSignature ||
		!slices.Equal(order.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}) {
		t.Errorf("%+v", order)
	}
	order, err = orderOf(requestFor(t, "ECDSA-P256"))
	if err != nil || order.Duration != 90*24*time.Hour || order.IsCA || order.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment || order.ExtKeyUsage != nil {
		t.Errorf("cert-manager's defaults: %+v, %v", order, err)
	}
}

func TestCarriedRequestsAreOpened(t *testing.T) {
	cr := requestFor(t, "ML-DSA-65", func(cr *cmapi.CertificateRequest) {
		carrier, err := pki.NewCarrier(cr.Spec.Request)
		if err != nil {
			t.Fatal(err)
		}
		cr.Annotations = map[string]string{v1alpha1.AnnotationRequest: string(cr.Spec.Request)}
		cr.Spec.Request = carrier
	})
	order, err := orderOf(cr)
	if err != nil {
		t.Fatal(err)
	}
	if family, err := pki.FamilyOf(order.Request.PublicKey); err != nil || family != "PostQuantum" {
		t.Errorf("family %s, %v", family, err)
	}
	cr.Annotations[v1alpha1.AnnotationRequest] = string(requestFor(t, "ML-DSA-65").Spec.Request)
	if _, err := orderOf(cr); err == nil {
		t.Error("another request in the carrier was taken: the annotation can be changed after approval")
	}
}

func TestEveryUsageOfCertManagersIsKnown(t *testing.T) {
	for _, u := range []cmapi.KeyUsage{"signing", "digital signature", "content commitment", "key encipherment", "key agreement", "data encipherment", "cert sign", "crl sign",
		"encipher only", "decipher only", "any", "server auth", "client auth", "code signing", "email protection", "s/mime", "ipsec end system", "ipsec tunnel", "ipsec user",
		"timestamping", "ocsp signing", "microsoft sgc", "netscape sgc"} {
		if _, _, err := usagesOf([]cmapi.KeyUsage{u}); err != nil {
			t.Error(err)
		}
	}
}

func TestOrdersThatAreRefused(t *testing.T) {
	for says, change := range map[string]func(*cmapi.CertificateRequest){
		`spec.usages: "flying" is not a usage`: func(cr *cmapi.CertificateRequest) { cr.Spec.Usages = []cmapi.KeyUsage{"flying"} },
		"spec.duration 1m0s: at least 5m0s":    func(cr *cmapi.CertificateRequest) { cr.Spec.Duration = &metav1.Duration{Duration: time.Minute} },
		"no certificate request in PEM form":   func(cr *cmapi.CertificateRequest) { cr.Spec.Request = []byte("x") },
		"subjectKeyIdentifier is not that of": func(cr *cmapi.CertificateRequest) {
			cr.Annotations = map[string]string{v1alpha1.AnnotationRequest: string(cr.Spec.Request)}
		},
	} {
		if _, err := orderOf(requestFor(t, "ECDSA-P256", change)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
}

func TestWithoutAnAuthorityOfTheFamily(t *testing.T) {
	for _, c := range []struct {
		algorithm v1alpha1.KeyAlgorithm
		says      string
	}{
		{"ML-DSA-65", `PQCIssuer "ca" has no authority for PostQuantum keys; add the Secret of a CA with a post-quantum key to its spec.ca.secretRefs`},
		{"RSA-2048", `PQCIssuer "ca" has no authority for Classical keys; add the Secret of a CA with an ECDSA or RSA key to its spec.ca.secretRefs`},
	} {
		cr := requestFor(t, c.algorithm)
		order, err := orderOf(cr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = signByFamily(cr, order, issuers.Authorities{}, now)
		if v, _ := judge(cr, nil, err); v.reason != "Failed" || v.message != c.says {
			t.Errorf("%+v, want %q", v, c.says)
		}
		// A broken Secret may hold what is missing: that is waited for.
		_, err = signByFamily(cr, order, issuers.Authorities{Problems: []*conditions.Problem{{Reason: v1alpha1.ReasonSecretNotFound, Message: "no Secret"}}}, now)
		if v, after := judge(cr, nil, err); v.reason != "Pending" || !strings.Contains(v.message, "not ready: no Secret") || after == 0 {
			t.Errorf("%+v, %s", v, after)
		}
	}
}

func TestErrorsOfTheMomentAreNoVerdict(t *testing.T) {
	if v, _ := judge(requestFor(t, "ECDSA-P256"), nil, errors.New("etcd is away")); v != nil {
		t.Errorf("%+v", v)
	}
	if v, _ := judge(requestFor(t, "ECDSA-P256"), nil, fmt.Errorf("wrapped: %w", refusedError{errors.New("no")})); v.reason != "Failed" {
		t.Errorf("%+v", v)
	}
}

// away is a key in an HSM that does not sign at the moment.
type away struct {
	crypto.Signer
	err error
}

func (k away) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) { return nil, k.err }

func TestARequestWaitsForAnAuthorityInAnHSM(t *testing.T) {
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	requestPEM, err := pki.NewRequest(key, pki.Names{CommonName: "CA"})
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(requestPEM)
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.SelfSign(pki.Order{Request: request, IsCA: true, Duration: time.Hour}, key, now)
	if err != nil {
		t.Fatal(err)
	}
	for reason, fails := range map[string]error{
		"Pending": conditions.Waiting(time.Second, v1alpha1.ReasonHSMNotReady, "no member signs"),
		"Failed":  errors.New("CKR_DATA_LEN_RANGE"), // it would never be signed
	} {
		ca, err := pki.NewAuthority(pki.CertificatesPEM(root.Chain.Leaf()), func() (crypto.Signer, error) { return away{key, fails}, nil }, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		cr := requestFor(t, "ECDSA-P256")
		order, err := orderOf(cr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = signByFamily(cr, order, issuers.Authorities{List: []issuers.Authority{{Authority: ca}}}, now)
		if v, after := judge(cr, nil, err); v == nil || v.reason != reason || !strings.Contains(v.message, fails.Error()) || (after != 0) != (reason == "Pending") {
			t.Errorf("%v: %+v after %s", fails, v, after)
		}
	}
}

func TestStatusOfRequests(t *testing.T) {
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	requestPEM, err := pki.NewRequest(key, pki.Names{CommonName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(requestPEM)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := pki.SelfSign(pki.Order{Request: request, Duration: time.Hour}, key, now)
	if err != nil {
		t.Fatal(err)
	}
	issued.Shortened = true
	cr := requestFor(t, "ECDSA-P256")
	v, _ := judge(cr, issued, nil)
	text := func(v verdict) string {
		u, err := statusOf(cr, v, now)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	signed, failed, pending := text(*v), text(verdict{reason: "Failed", message: "no"}), text(verdict{reason: "Pending", message: "wait"})
	for name, c := range map[string]struct {
		in       string
		has, not []string
	}{
		"signed":  {signed, []string{`"status":"True"`, `"reason":"Issued"`, `"certificate":"`, `"ca":"`, "shorter than requested", `"resourceVersion":"42"`, `"uid":"uid-1"`}, []string{"failureTime"}},
		"failed":  {failed, []string{`"status":"False"`, `"reason":"Failed"`, `"failureTime":"2030-01-02T03:04:05Z"`}, []string{`"certificate"`}},
		"pending": {pending, []string{`"status":"False"`, `"reason":"Pending"`}, []string{"failureTime", `"certificate"`}},
	} {
		for _, has := range c.has {
			if !strings.Contains(c.in, has) {
				t.Errorf("%s: lacks %s: %s", name, has, c.in)
			}
		}
		for _, not := range append(c.not, `"spec"`, "Approved") {
			if strings.Contains(c.in, not) {
				t.Errorf("%s: has %s: %s", name, not, c.in)
			}
		}
	}
}
