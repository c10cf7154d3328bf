package certificate

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

// issuedAt is when the certificates of these tests were issued; they are valid
// for 90 hours from then.
var issuedAt = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func wanted() record {
	return record{DNSNames: []string{"a.example.com", "b.example.com"}, IPAddresses: []string{"192.0.2.1"}, Duration: metav1.Duration{Duration: 90 * time.Hour},
		Issuer: v1alpha1.IssuerReference{Group: v1alpha1.GroupName, Kind: "PQCIssuer", Name: "ca"}}
}

// issuedSecret is the Secret of a certificate as the controller leaves it.
func issuedSecret(t *testing.T, algorithm v1alpha1.KeyAlgorithm, life time.Duration, change ...func(*pki.Names)) *corev1.Secret {
	t.Helper()
	key, err := pki.GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	names := wanted().names()
	names.CommonName = "a" // a self-signed certificate has to have one
	for _, f := range change {
		f(&names)
	}
	requestPEM, err := pki.NewRequest(key, names)
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(requestPEM)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := pki.SelfSign(pki.Order{Request: request, KeyUsage: x509.KeyUsageDigitalSignature, Duration: life}, key, issuedAt)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	r := wanted()
	r.Issued = new(metav1.NewTime(issuedAt))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "web-x", Annotations: annotationsOf(algorithm, 3, r)},
		Data:       map[string][]byte{corev1.TLSCertKey: pki.CertificatesPEM(issued.Chain.Certificates...), corev1.TLSPrivateKeyKey: keyPEM},
	}
}

func TestWhenACertificateIsIssuedAnew(t *testing.T) {
	good, other, rsaless := issuedSecret(t, "ML-DSA-44", 90*time.Hour), issuedSecret(t, "ML-DSA-44", 90*time.Hour), issuedSecret(t, "ECDSA-P256", 90*time.Hour)
	change := func(f func(*corev1.Secret)) *corev1.Secret {
		s := good.DeepCopy()
		f(s)
		return s
	}
	want := func(f func(*record)) record {
		r := wanted()
		f(&r)
		return r
	}
	anothers := issuedSecret(t, "ML-DSA-44", 90*time.Hour, func(n *pki.Names) { n.DNSNames = n.DNSNames[:1] })
	halfWay := issuedAt.Add(45 * time.Hour)
	for name, c := range map[string]struct {
		secret  *corev1.Secret
		want    record
		before  time.Duration
		now     time.Time
		usable  bool
		reason  string
		message string
	}{
		"fresh":                    {good, wanted(), 0, issuedAt, true, "", ""},
		"half its life":            {good, wanted(), 0, halfWay, true, "", ""},
		"its last third":           {good, wanted(), 0, issuedAt.Add(60 * time.Hour), true, reasonRenewalIsDue, "2030-01-04T15:04:05Z"},
		"a second before that":     {good, wanted(), 0, issuedAt.Add(60*time.Hour - time.Second), true, "", ""},
		"renewBefore":              {good, wanted(), time.Hour, issuedAt.Add(89 * time.Hour), true, reasonRenewalIsDue, "due for renewal"},
		"not before renewBefore":   {good, wanted(), time.Hour, issuedAt.Add(80 * time.Hour), true, "", ""},
		"expired":                  {good, wanted(), 0, issuedAt.Add(90 * time.Hour), false, reasonExpired, "2030-01-05T21:04:05Z"},
		"no Secret":                {nil, wanted(), 0, halfWay, false, reasonMissing, "not there"},
		"an empty Secret":          {change(func(s *corev1.Secret) { s.Data = nil }), wanted(), 0, halfWay, false, reasonInvalid, "no certificate"},
		"no key":                   {change(func(s *corev1.Secret) { delete(s.Data, "tls.key") }), wanted(), 0, halfWay, false, reasonInvalid, "no private key"},
		"a broken certificate":     {change(func(s *corev1.Secret) { s.Data["tls.crt"] = s.Data["tls.crt"][:100] }), wanted(), 0, halfWay, false, reasonInvalid, "was changed"},
		"another's key":            {change(func(s *corev1.Secret) { s.Data["tls.key"] = other.Data["tls.key"] }), wanted(), 0, halfWay, false, reasonKeyMismatch, "does not belong"},
		"another algorithm's pair": {change(func(s *corev1.Secret) { s.Data = rsaless.Data }), wanted(), 0, halfWay, false, reasonAlgorithm, "ECDSA-P256"},
		"another's pair":           {change(func(s *corev1.Secret) { s.Data = anothers.Data }), wanted(), 0, halfWay, false, reasonNotItsOwn, "it lacks the requested names b.example.com"},
		"annotation gone":          {change(func(s *corev1.Secret) { delete(s.Annotations, v1alpha1.AnnotationRequested) }), wanted(), 0, halfWay, false, reasonRequestedLost, v1alpha1.AnnotationRequested},
		"annotation broken":        {change(func(s *corev1.Secret) { s.Annotations[v1alpha1.AnnotationRequested] = "{" }), wanted(), 0, halfWay, false, reasonRequestedLost, v1alpha1.AnnotationRequested},
		"another name":             {good, want(func(r *record) { r.DNSNames = []string{"c.example.com"} }), 0, halfWay, false, reasonSpecChanged, "dnsNames"},
		"another issuer and life": {good, want(func(r *record) { r.Issuer.Name, r.Duration.Duration = "other", time.Hour }), 0, halfWay, false,
			reasonSpecChanged, "duration, issuerRef"},
		"asked to renew": {good, want(func(r *record) { r.Renew = "now" }), 0, halfWay, true, reasonRenewalAsked, `"now"`},
		"renewed as asked": {change(func(s *corev1.Secret) {
			r := parseRecord(s.Annotations[v1alpha1.AnnotationRequested])
			r.Renew = "now"
			s.Annotations[v1alpha1.AnnotationRequested] = r.String()
		}), want(func(r *record) { r.Renew = "now" }), 0, halfWay, true, "", ""},
		"the wish taken back": {change(func(s *corev1.Secret) {
			r := parseRecord(s.Annotations[v1alpha1.AnnotationRequested])
			r.Renew = "then"
			s.Annotations[v1alpha1.AnnotationRequested] = r.String()
		}), wanted(), 0, halfWay, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := observe("ML-DSA-44", c.want, c.before, c.secret)
			reason, message, violated := evaluate(unusable, s, c.now)
			if violated == c.usable {
				t.Fatalf("unusable: %t, for %s: %s", violated, reason, message)
			}
			if c.usable {
				reason, message, _ = evaluate(renewal, s, c.now)
			}
			if reason != c.reason || !strings.Contains(message, c.message) {
				t.Errorf("reason %q, message %q; want %q and one that says %q", reason, message, c.reason, c.message)
			}
			if strings.Contains(message, "BEGIN PRIVATE KEY-----\n") {
				t.Error("key material in a message")
			}
		})
	}
}

func TestRenewalTime(t *testing.T) {
	for name, c := range map[string]struct {
		life, before, want time.Duration // want from when it was issued
	}{
		"a third by default":               {90 * time.Hour, 0, 60 * time.Hour},
		"renewBefore":                      {90 * time.Hour, 10 * time.Hour, 80 * time.Hour},
		"renewBefore beyond a cut life":    {9 * time.Hour, 10 * time.Hour, 6 * time.Hour},
		"not twice a minute":               {30 * time.Second, 0, time.Minute},
		"not twice a minute, nearly whole": {10 * time.Minute, 10*time.Minute - time.Second, time.Minute},
	} {
		s := observe("ECDSA-P256", wanted(), c.before, issuedSecret(t, "ECDSA-P256", c.life))
		if got := s.renewalTime().Sub(issuedAt); got != c.want {
			t.Errorf("%s: %s after it was issued, want %s", name, got, c.want)
		}
	}
}

func TestRecordsFollowTheSpec(t *testing.T) {
	c := &v1alpha1.PQCCertificate{Spec: v1alpha1.PQCCertificateSpec{
		CommonName: "cn", DNSNames: []v1alpha1.Hostname{"b", "a"}, IPAddresses: []string{"2001:db8:0::1", "2001:db8::1", "192.0.2.1"},
		IssuerRef: v1alpha1.IssuerReference{Group: "cert-manager.io", Kind: "Issuer", Name: "i"}}}
	c.Annotations = map[string]string{v1alpha1.AnnotationRenew: "1"}
	r := recordOf(c, "ML-DSA-65")
	if r.Duration.Duration != 2160*time.Hour || strings.Join(r.DNSNames, " ") != "a b" || strings.Join(r.IPAddresses, " ") != "192.0.2.1 2001:db8::1" || r.Renew != "1" {
		t.Errorf("%+v", r)
	}
	if back := parseRecord(r.String()); len(back.changes(r)) != 0 || back.Renew != r.Renew {
		t.Errorf("after JSON: %+v", back)
	}
	c.Spec.DNSNames = []v1alpha1.Hostname{"a", "b"} // the order of a set means nothing
	if changes := r.changes(recordOf(c, "ML-DSA-65")); len(changes) != 0 {
		t.Errorf("changes %v", changes)
	}
	for field, change := range map[string]func(*v1alpha1.PQCCertificateSpec){
		"commonName":  func(s *v1alpha1.PQCCertificateSpec) { s.CommonName = "other" },
		"dnsNames":    func(s *v1alpha1.PQCCertificateSpec) { s.DNSNames = s.DNSNames[:1] },
		"ipAddresses": func(s *v1alpha1.PQCCertificateSpec) { s.IPAddresses = nil },
		"isCA":        func(s *v1alpha1.PQCCertificateSpec) { s.IsCA = true },
		"usages":      func(s *v1alpha1.PQCCertificateSpec) { s.Usages = []v1alpha1.CertificateUsage{"ClientAuth"} },
		"duration":    func(s *v1alpha1.PQCCertificateSpec) { s.Duration = &metav1.Duration{Duration: time.Hour} },
		"issuerRef":   func(s *v1alpha1.PQCCertificateSpec) { s.IssuerRef.Kind = "ClusterIssuer" },
		"keyStorage": func(s *v1alpha1.PQCCertificateSpec) {
			s.KeyStorage.ExistingKeys = []v1alpha1.ExistingKey{{Algorithm: "ECDSA-P256", Label: "other"}, {Algorithm: "ML-DSA-65", Label: "web"}}
		},
	} {
		changed := c.DeepCopy()
		change(&changed.Spec)
		if got := r.changes(recordOf(changed, "ML-DSA-65")); len(got) != 1 || got[0] != field || r.fulfils(recordOf(changed, "ML-DSA-65")) {
			t.Errorf("%s changed: %v", field, got)
		}
	}
	// What concerns another certificate is no change of this one.
	other := c.DeepCopy()
	other.Spec.KeyStorage.ExistingKeys = []v1alpha1.ExistingKey{{Algorithm: "ECDSA-P256", Label: "other"}}
	if changes := r.changes(recordOf(other, "ML-DSA-65")); len(changes) != 0 {
		t.Errorf("changes %v", changes)
	}
	// When to renew is no part of what is requested.
	c.Spec.RenewBefore = &metav1.Duration{Duration: time.Hour}
	if !r.fulfils(recordOf(c, "ML-DSA-65")) {
		t.Error("renewBefore asks for a new certificate")
	}
}

func TestIssuersInWords(t *testing.T) {
	for want, ref := range map[string]v1alpha1.IssuerReference{
		`PQCIssuer "a"`:                     {Group: v1alpha1.GroupName, Kind: "PQCIssuer", Name: "a"},
		`ClusterIssuer.cert-manager.io "b"`: {Group: "cert-manager.io", Kind: "ClusterIssuer", Name: "b"},
	} {
		if got := (record{Issuer: ref}).issuer(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
