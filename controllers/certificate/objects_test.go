package certificate

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/openssl/openssltest"
	"qtls.dev/qtls/internal/pki"
)

func web() *v1alpha1.PQCCertificate {
	return &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1", Generation: 4},
		Spec: v1alpha1.PQCCertificateSpec{DNSNames: []v1alpha1.Hostname{"a.example.com"}, Algorithms: []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256"},
			IssuerRef: v1alpha1.IssuerReference{Group: v1alpha1.GroupName, Kind: "PQCIssuer", Name: "ca"}}}
}

func TestRequestsAsOurIssuersAndOthersTakeThem(t *testing.T) {
	for _, c := range []struct {
		algorithm v1alpha1.KeyAlgorithm
		group     string
		carried   bool
	}{
		{"ML-DSA-65", v1alpha1.GroupName, true},
		{"ML-DSA-65", "example.com", false}, // nobody else knows what a carrier is
		{"ECDSA-P256", v1alpha1.GroupName, false},
		{"ECDSA-P256", "cert-manager.io", false},
	} {
		key, err := pki.GenerateKey(c.algorithm)
		if err != nil {
			t.Fatal(err)
		}
		r := recordOf(web(), "ML-DSA-65")
		r.Issuer.Group = c.group
		cr, err := buildRequest(web(), c.algorithm, 7, 2, r, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, carried := cr.Annotations[v1alpha1.AnnotationRequest]; carried != c.carried {
			t.Errorf("%s for %s: in a carrier: %t", c.algorithm, c.group, carried)
		}
		if is, err := requestIsFor(cr, key.Public()); !is || err != nil {
			t.Errorf("%s for %s: not for its key, %v", c.algorithm, c.group, err)
		}
		other, err := pki.GenerateKey(c.algorithm)
		if err != nil {
			t.Fatal(err)
		}
		if is, err := requestIsFor(cr, other.Public()); is || err != nil {
			t.Errorf("%s for %s: for another key, %v", c.algorithm, c.group, err)
		}
		name := v1alpha1.CertificateSecretName("web", c.algorithm)
		if cr.Name != name+"-7" || revisionOf(cr) != 7 || attemptOf(cr) != 2 || cr.Annotations["cert-manager.io/private-key-secret-name"] != name+"-next" || !metav1.IsControlledBy(cr, web()) {
			t.Errorf("metadata: %+v", cr.ObjectMeta)
		}
		if cr.Spec.IssuerRef.Group != c.group || cr.Spec.Duration.Duration != defaultDuration || cr.Spec.IsCA || !slices.Equal(cr.Spec.Usages, []cmapi.KeyUsage{"digital signature", "server auth"}) {
			t.Errorf("spec: %+v", cr.Spec)
		}
	}
}

func TestRequestsOfClients(t *testing.T) {
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		usages []v1alpha1.CertificateUsage
		want   []cmapi.KeyUsage
		checks []x509.ExtKeyUsage
	}{
		{nil, []cmapi.KeyUsage{"digital signature", "server auth"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		{[]v1alpha1.CertificateUsage{"ServerAuth"}, []cmapi.KeyUsage{"digital signature", "server auth"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		{[]v1alpha1.CertificateUsage{"ClientAuth"}, []cmapi.KeyUsage{"digital signature", "client auth"}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		{[]v1alpha1.CertificateUsage{"ServerAuth", "ClientAuth"}, []cmapi.KeyUsage{"digital signature", "server auth", "client auth"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}},
	} {
		certificate := web()
		certificate.Spec.Usages = c.usages
		cr, err := buildRequest(certificate, "ECDSA-P256", 1, 1, recordOf(certificate, "ECDSA-P256"), key)
		if err != nil || !slices.Equal(cr.Spec.Usages, c.want) {
			t.Errorf("%v: asks for %v, %v; want %v", c.usages, cr.Spec.Usages, err, c.want)
		}
		if got := recordOf(certificate, "ECDSA-P256").extendedUsages(); !slices.Equal(got, c.checks) {
			t.Errorf("%v: what comes is checked for %v, want %v", c.usages, got, c.checks)
		}
	}
}

// To say what is so by default, or in another order, issues nothing anew.
func TestUsagesAreASet(t *testing.T) {
	with := func(usages ...v1alpha1.CertificateUsage) record {
		c := web()
		c.Spec.Usages = usages
		return recordOf(c, "ML-DSA-65")
	}
	for _, same := range [][2]record{
		{with(), with("ServerAuth")},
		{with("ClientAuth", "ServerAuth"), with("ServerAuth", "ClientAuth")},
	} {
		if changes := same[0].changes(same[1]); len(changes) != 0 {
			t.Errorf("%v and %v differ in %v", same[0].Usages, same[1].Usages, changes)
		}
	}
}

// A person may have approved the request.
func TestARequestIsNotGivenUpWhileOpenSSLFails(t *testing.T) {
	openssltest.Use(t)
	key, err := pki.GenerateKey("haetae2")
	if err != nil {
		t.Fatal(err)
	}
	cr, err := buildRequest(web(), "haetae2", 1, 1, recordOf(web(), "haetae2"), key)
	if err != nil {
		t.Fatal(err)
	}
	if is, err := requestIsFor(cr, key.Public()); !is || err != nil {
		t.Errorf("not for its key, %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "openssl"), []byte("#!/bin/sh\nkill -9 $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if is, err := requestIsFor(cr, key.Public()); is || !errors.Is(err, openssl.ErrUnavailable) {
		t.Errorf("it is for its key: %t, %v", is, err)
	}
}

func TestRequestsOfAuthorities(t *testing.T) {
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	r := recordOf(web(), "ML-DSA-65")
	r.IsCA = true
	cr, err := buildRequest(web(), "ECDSA-P256", 1, 1, r, key)
	if usages := r.extendedUsages(); usages != nil {
		t.Errorf("what comes is checked for %v", usages)
	}
	if err != nil || !cr.Spec.IsCA || !slices.Equal(cr.Spec.Usages, []cmapi.KeyUsage{"cert sign", "crl sign"}) {
		t.Errorf("%+v, %v", cr.Spec, err)
	}
}

func TestPendingKeys(t *testing.T) {
	key, err := pki.GenerateKey("ML-DSA-44")
	if err != nil {
		t.Fatal(err)
	}
	data, err := keypair.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	r := recordOf(web(), "ML-DSA-65")
	s := buildPending(web(), "ML-DSA-44", 3, r, data)
	if s.Name != "web-ml-dsa-44-next" || !*s.Immutable || len(s.Data) != 1 || !metav1.IsControlledBy(s, web()) {
		t.Errorf("%+v", s)
	}
	changed := r
	changed.DNSNames = []string{"other.example.com"}
	asked := r
	asked.Renew = "again"
	inPool, inOther := r, r
	inPool.HSM, inOther.HSM = "pool", "other"
	referring := buildPending(web(), "ML-DSA-44", 3, inPool, keypair.Reference{Pool: "pool", Label: "web-ml-dsa-44-3-x"}.PEM())
	former := keypair.Reference{Pool: "pool", Label: "web-ml-dsa-44-1-x"}
	authority := inPool
	authority.IsCA = true
	keeping := buildPending(web(), "ML-DSA-44", 3, authority, former.PEM())
	serving := &corev1.Secret{Data: map[string][]byte{"tls.key": former.PEM()}}
	anew := buildPending(web(), "ML-DSA-44", 3, authority, keypair.Reference{Pool: "pool", Label: "web-ml-dsa-44-3-x"}.PEM())
	ofAnother, ofOwn := inPool, inPool
	ofAnother.Maker, ofOwn.Maker = "another", web().UID
	restored := buildPending(web(), "ML-DSA-44", 3, ofAnother, keypair.Reference{Pool: "pool", Label: "web-ml-dsa-44-3-x"}.PEM())
	own := buildPending(web(), "ML-DSA-44", 3, ofOwn, keypair.Reference{Pool: "pool", Label: "web-ml-dsa-44-3-x"}.PEM())
	inUse := inPool
	inUse.Key = former.Label
	using := buildPending(web(), "ML-DSA-44", 3, inUse, former.PEM())
	root := r
	root.IsCA = true
	first := buildPending(web(), "ML-DSA-44", 3, root, data)
	copied := root
	copied.Kept = true
	renewing := buildPending(web(), "ML-DSA-44", 3, copied, data)
	holding := &corev1.Secret{Data: map[string][]byte{"tls.key": data}}
	broken := s.DeepCopy()
	broken.Data = map[string][]byte{"tls.key": []byte("x")}
	for name, c := range map[string]struct {
		secret    *corev1.Secret
		algorithm v1alpha1.KeyAlgorithm
		want      record
		last      int64
		present   *corev1.Secret
		fit       bool
	}{
		"of this revision":           {s, "ML-DSA-44", r, 2, nil, true},
		"of a revision that is done": {s, "ML-DSA-44", r, 3, nil, false},
		"of another algorithm":       {s, "ML-DSA-65", r, 2, nil, false},
		"of another spec":            {s, "ML-DSA-44", changed, 2, nil, false},
		"from before a new wish":     {s, "ML-DSA-44", asked, 2, nil, false},
		"broken":                     {broken, "ML-DSA-44", r, 2, nil, false},
		"in the wanted HSM":          {referring, "ML-DSA-44", inPool, 2, nil, true},
		"made for it":                {own, "ML-DSA-44", inPool, 2, nil, true},
		"made for another object":    {restored, "ML-DSA-44", inPool, 2, nil, false},
		"in another HSM":             {referring, "ML-DSA-44", inOther, 2, nil, false},
		"in an HSM, not wanted":      {referring, "ML-DSA-44", r, 2, nil, false},
		"in no HSM, wanted":          {s, "ML-DSA-44", inPool, 2, nil, false},
		"of an authority's first":    {first, "ML-DSA-44", root, 2, nil, true},
		"of an authority's renewal":  {renewing, "ML-DSA-44", root, 2, holding, true},
		"of a deleted authority":     {renewing, "ML-DSA-44", root, 2, nil, false},
		"of the present in an HSM":   {keeping, "ML-DSA-44", authority, 2, serving, true},
		"of a deleted one in an HSM": {keeping, "ML-DSA-44", authority, 2, nil, false},
		"of one to come in an HSM":   {anew, "ML-DSA-44", authority, 2, nil, true},
		"not of the authority":       {anew, "ML-DSA-44", authority, 2, serving, false},
		"that was there before":      {using, "ML-DSA-44", inUse, 2, nil, true},
	} {
		if fit := pendingFits(c.secret, state{Algorithm: c.algorithm, Want: c.want, Secret: c.present}, c.last); fit != c.fit {
			t.Errorf("a key %s fits: %t", name, fit)
		}
	}
}

// What an authority signed is valid as long as its key is there, so that is kept
// whatever has become of the rest of its Secret.
func TestWhichKeysAreKept(t *testing.T) {
	private := func(algorithm v1alpha1.KeyAlgorithm) []byte {
		key, err := pki.GenerateKey(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		data, err := keypair.MarshalKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	own, other := private("ML-DSA-44"), private("ECDSA-P256")
	inPool := keypair.Reference{Pool: "vault", Label: "root-1"}.PEM()
	const none, kept, refused = "none", "kept", "refused"
	asked := func(f func(*record)) record {
		r := record{IsCA: true}
		f(&r)
		return r
	}
	authority := asked(func(*record) {})
	vault := asked(func(r *record) { r.HSM = "vault" })
	issued := func(r record) record {
		r.Issued = &metav1.Time{Time: issuedAt}
		return r
	}
	for name, c := range map[string]struct {
		want, has record
		key       []byte
		result    string
	}{
		"an authority's":                             {authority, issued(authority), own, kept},
		"whose annotation is gone":                   {authority, record{}, own, kept},
		"in an HSM":                                  {vault, issued(vault), inPool, kept},
		"in an HSM, whose annotation is gone":        {vault, record{}, inPool, kept},
		"a server's":                                 {record{}, issued(record{}), own, none},
		"that goes into an HSM":                      {vault, issued(authority), own, none},
		"that comes back from one":                   {authority, issued(vault), inPool, none},
		"that goes into another":                     {vault, issued(asked(func(r *record) { r.HSM = "other" })), keypair.Reference{Pool: "other", Label: "x"}.PEM(), none},
		"which another one in the HSM follows":       {asked(func(r *record) { r.HSM, r.Key = "vault", "root" }), issued(vault), inPool, none},
		"which was there before, and goes":           {vault, issued(asked(func(r *record) { r.HSM, r.Key = "vault", "root" })), inPool, none},
		"that does not parse":                        {authority, issued(authority), own[:100], refused},
		"that is gone":                               {authority, issued(authority), nil, refused},
		"of another algorithm":                       {authority, issued(authority), other, refused},
		"in an HSM, where a Secret's belongs":        {authority, issued(authority), inPool, refused},
		"in a Secret, where an HSM's belongs":        {vault, issued(vault), own, refused},
		"in another HSM than the annotation says":    {vault, issued(vault), keypair.Reference{Pool: "other", Label: "x"}.PEM(), refused},
		"in an HSM, with neither key nor annotation": {vault, record{}, []byte("x"), refused},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "root-ml-dsa-44"}, Data: map[string][]byte{"tls.key": c.key, "tls.crt": []byte("damaged")}}
		key, err := state{Algorithm: "ML-DSA-44", Want: c.want, Has: c.has, Secret: secret}.keptKey()
		result := none
		switch p, ok := conditions.AsProblem(err); {
		case ok && p.Reason == v1alpha1.ReasonSecretInvalid && p.After == 0 && strings.Contains(p.Message, `Secret "root-ml-dsa-44"`) && strings.Contains(p.Message, "delete the Secret"):
			result = refused
		case err != nil:
			result = err.Error()
		case slices.Equal(key, c.key) && key != nil:
			result = kept
		}
		if result != c.result {
			t.Errorf("a key %s: %s, want %s", name, result, c.result)
		}
	}
	if key, err := (state{Want: authority}).keptKey(); key != nil || err != nil {
		t.Errorf("without a Secret: %q, %v", key, err)
	}
}

// Two pools may lead to one token, so that only the label counts.
func TestWhichKeysAreAbandoned(t *testing.T) {
	named := func(label string) keypair.Reference { return keypair.Reference{Pool: "vault", Label: label} }
	made, none := named("web-ml-dsa-65-3-abcdefgh"), keypair.Reference{}
	inPool := record{HSM: "vault"}
	for name, test := range map[string]struct {
		requested record
		key       []byte
		last      int64
		present   keypair.Reference
		want      bool
	}{
		"made for a revision that was given up":     {inPool, made.PEM(), 2, named("web-ml-dsa-65-2-abcdefgh"), true},
		"made for the first revision":               {inPool, made.PEM(), 0, none, true},
		"the certificate has it":                    {inPool, made.PEM(), 2, made, false},
		"the certificate has it by another pool":    {inPool, made.PEM(), 2, keypair.Reference{Pool: "other", Label: made.Label}, false},
		"its revision was stored":                   {inPool, made.PEM(), 3, none, false},
		"there was a later revision":                {inPool, made.PEM(), 4, named("web-ml-dsa-65-4-abcdefgh"), false},
		"it was there before":                       {record{HSM: "vault", Key: made.Label}, made.PEM(), 2, none, false},
		"of an earlier revision, as an authority's": {inPool, named("web-ml-dsa-65-1-abcdefgh").PEM(), 2, none, false},
		"of another certificate":                    {inPool, named("shop-ml-dsa-65-3-abcdefgh").PEM(), 2, none, false},
		"in the Secret itself":                      {record{}, []byte("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"), 2, none, false},
	} {
		t.Run(name, func(t *testing.T) {
			pending := buildPending(web(), "ML-DSA-65", 3, test.requested, test.key)
			if key, got := abandonedKey(pending, test.last, test.present); got != test.want || got && key != made {
				t.Errorf("%t, %+v", got, key)
			}
		})
	}
}

func TestKeysThatAreAdopted(t *testing.T) {
	elsewhere := web()
	elsewhere.Namespace = "other"
	elsewhere.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageHSM, HSMRef: &v1alpha1.HSMPoolReference{Name: "b"},
		ExistingKeys: []v1alpha1.ExistingKey{{Algorithm: "ML-DSA-65", Label: "k1"}, {Algorithm: "ECDSA-P256", Label: "k2"}}}
	all := []v1alpha1.PQCCertificate{*web(), *elsewhere}
	for label, want := range map[string]bool{"k1": true, "k2": true, "k": false, "": false} {
		if adopted(label, all) != want {
			t.Errorf("key %q is adopted: %t", label, !want)
		}
	}
}

func TestSecretsReplaceOnlyWhatWasLookedAt(t *testing.T) {
	text := func(o any) string {
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	d := contents{chain: []byte("c"), key: []byte("k")}
	first := text(buildSecret(web(), "ML-DSA-65", 1, wanted(), d, "", ""))
	for _, not := range []string{"resourceVersion", "ca.crt"} {
		if strings.Contains(first, not) {
			t.Errorf("the first one has %s: %s", not, first)
		}
	}
	d.ca = []byte("ca")
	next := text(buildSecret(web(), "ML-DSA-65", 2, wanted(), d, "uid-2", "42"))
	for _, has := range []string{`"resourceVersion":"42"`, `"uid":"uid-2"`, `"type":"kubernetes.io/tls"`, `"ca.crt":"Y2E="`, `"name":"web-ml-dsa-65"`, `"qtls.dev/revision":"2"`, `"controller":true`} {
		if !strings.Contains(next, has) {
			t.Errorf("the next one lacks %s: %s", has, next)
		}
	}
}

func TestWhichAuthoritySigns(t *testing.T) {
	of := func(names ...string) (all []v1alpha1.Authority) {
		for _, n := range names {
			all = append(all, v1alpha1.Authority{Algorithm: n})
		}
		return all
	}
	for _, c := range []struct {
		authorities []v1alpha1.Authority
		algorithm   v1alpha1.KeyAlgorithm
		want        bool
	}{
		{nil, "ML-DSA-65", false}, {of("ML-DSA-87"), "ML-DSA-65", true}, {of("ML-DSA-87"), "ECDSA-P256", false}, {of("haetae2"), "ML-DSA-65", true},
		{of("RSA-3072"), "ECDSA-P256", true}, {of("ML-DSA-87", "RSA-3072"), "ECDSA-P256", true}, {of("unknown"), "ECDSA-P256", false},
	} {
		if got := signsFor(c.authorities, c.algorithm); got != c.want {
			t.Errorf("%v for %s: %t", c.authorities, c.algorithm, got)
		}
	}
}

func TestWhichSecretsAreTakenOver(t *testing.T) {
	of := func(c *v1alpha1.PQCCertificate) []metav1.OwnerReference {
		return []metav1.OwnerReference{*metav1.NewControllerRef(c, certificateKind)}
	}
	former := web()
	former.UID = "uid-0"
	bystander := of(former)
	bystander[0].Controller = nil
	for name, c := range map[string]struct {
		labels map[string]string
		owners []metav1.OwnerReference
		want   bool
	}{
		"with the label":                  {map[string]string{v1alpha1.LabelCertificate: "web"}, nil, true},
		"whose owner does not control it": {map[string]string{v1alpha1.LabelCertificate: "web"}, bystander, true},
		"without the label":               {nil, nil, false},
		"with another's label":            {map[string]string{v1alpha1.LabelCertificate: "web2"}, nil, false},
		"that goes with its former owner": {map[string]string{v1alpha1.LabelCertificate: "web"}, of(former), false},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, OwnerReferences: c.owners}}
		if got := restored(secret, web()); got != c.want {
			t.Errorf("a Secret %s is taken over: %t", name, got)
		}
	}
}

func TestLongNamesMakeShortLabels(t *testing.T) {
	long := strings.Repeat("a", 199)
	for _, name := range []string{"web", long + "b", long + "c"} {
		c := web()
		c.Name = name
		if v := labelsOf(c)[v1alpha1.LabelCertificate]; len(v) > 63 || len(name) <= 63 && v != name {
			t.Errorf("%s: %s", name, v)
		}
	}
	if v1alpha1.LabelValue(long+"b") == v1alpha1.LabelValue(long+"c") {
		t.Error("two names have one label")
	}
}

func TestCountersOfTamperedAnnotations(t *testing.T) {
	for value, want := range map[string]int64{"3": 3, "": 0, "-1": 0, "x": 0, "99999999999999999999": 0} {
		s := &corev1.Secret{}
		s.Annotations = map[string]string{v1alpha1.AnnotationRevision: value, v1alpha1.AnnotationAttempt: value}
		if got := revisionOf(s); got != want {
			t.Errorf("revision %q: %d", value, got)
		}
		if got := attemptOf(s); got != max(want, 1) {
			t.Errorf("attempt %q: %d", value, got)
		}
	}
}

func TestLeftovers(t *testing.T) {
	c := web()
	owner := []metav1.OwnerReference{*metav1.NewControllerRef(c, certificateKind)}
	secret := func(name string, owned bool) metav1.PartialObjectMetadata {
		s := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if owned {
			s.OwnerReferences = owner
		}
		return s
	}
	request := func(algorithm v1alpha1.KeyAlgorithm, revision int64) cmapi.CertificateRequest {
		cr := cmapi.CertificateRequest{}
		cr.Name = requestName(v1alpha1.CertificateSecretName("web", algorithm), revision)
		cr.Annotations = annotationsOf(algorithm, revision, record{})
		return cr
	}
	secrets := []metav1.PartialObjectMetadata{secret("web-ml-dsa-65", true), secret("web-ml-dsa-65-next", true), secret("web-ecdsa-p256", true), secret("web-ecdsa-p256-next", true),
		secret("web-rsa-2048", true), secret("somebodys", false)}
	requests := []cmapi.CertificateRequest{request("ML-DSA-65", 1), request("ML-DSA-65", 2), request("ML-DSA-65", 3), request("ML-DSA-65", 4), request("ML-DSA-65", 5), request("RSA-2048", 1)}
	of := func(algorithm v1alpha1.KeyAlgorithm, revision, underway int64, unknown bool) outcome {
		return outcome{status: v1alpha1.IssuedCertificate{Algorithm: algorithm, SecretName: v1alpha1.CertificateSecretName("web", algorithm), Revision: revision}, underway: underway, unknown: unknown}
	}
	for name, test := range map[string]struct {
		outcomes []outcome
		want     []string
	}{
		"nothing under way": {[]outcome{of("ML-DSA-65", 3, 0, false), of("ECDSA-P256", 1, 0, false)},
			[]string{"web-ecdsa-p256-next", "web-ml-dsa-65-1", "web-ml-dsa-65-4", "web-ml-dsa-65-5", "web-ml-dsa-65-next", "web-rsa-2048", "web-rsa-2048-1"}},
		"one under way": {[]outcome{of("ML-DSA-65", 3, 4, false), of("ECDSA-P256", 1, 0, false)},
			[]string{"web-ecdsa-p256-next", "web-ml-dsa-65-1", "web-ml-dsa-65-5", "web-rsa-2048", "web-rsa-2048-1"}},
		"one not known": {[]outcome{of("ML-DSA-65", 3, 0, true), of("ECDSA-P256", 1, 0, false)},
			[]string{"web-ecdsa-p256-next", "web-rsa-2048-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(leftovers(c, slices.Clone(secrets), slices.Clone(requests), test.outcomes)); !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func names(objects []client.Object) []string {
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	return names
}

// A certificate whose algorithm the spec no longer names is what gateways serve
// until they have the others.
func TestFormerAlgorithmsStayUntilTheyAreReplaced(t *testing.T) {
	c := web()
	authority := web()
	authority.Spec.IsCA = true
	secrets := []metav1.PartialObjectMetadata{}
	for _, name := range []string{"web-ml-dsa-65", "web-rsa-2048", "web-rsa-2048-next"} {
		secrets = append(secrets, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, certificateKind)}}})
	}
	for name, test := range map[string]struct {
		certificate *v1alpha1.PQCCertificate
		outcomes    []outcome
		want        []string
	}{
		"all are there":             {c, []outcome{fine("ML-DSA-65", time.Hour), fine("ECDSA-P256", time.Hour)}, []string{"web-rsa-2048", "web-rsa-2048-next"}},
		"one is renewed":            {c, []outcome{renewing("ML-DSA-65", nil), fine("ECDSA-P256", time.Hour)}, []string{"web-rsa-2048", "web-rsa-2048-next"}},
		"one is not there yet":      {c, []outcome{fine("ML-DSA-65", time.Hour), lacking("ECDSA-P256", nil)}, []string{"web-rsa-2048-next"}},
		"of one nothing is known":   {c, []outcome{fine("ML-DSA-65", time.Hour), failed(c, "ECDSA-P256", errors.New("away"), issuedAt)}, []string{"web-rsa-2048-next"}},
		"one could not be read":     {c, []outcome{fine("ML-DSA-65", time.Hour), unread("ECDSA-P256")}, []string{"web-rsa-2048-next"}},
		"they are authorities' own": {authority, []outcome{fine("ML-DSA-65", time.Hour)}, []string{"web-rsa-2048-next"}},
	} {
		if got := names(leftovers(test.certificate, slices.Clone(secrets), nil, test.outcomes)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v are deleted, want %v", name, got, test.want)
		}
	}
}

func TestSecretsOfPublishedRevisions(t *testing.T) {
	revision := func(secrets ...string) string {
		var r dataplane.Revision
		for _, s := range secrets {
			r.Certificates = append(r.Certificates, dataplane.Certificate{Secret: s})
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	gateway := func(data map[string]string) corev1.ConfigMap {
		return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "edge-dataplane", Labels: map[string]string{v1alpha1.LabelGateway: "edge"}}, Data: data}
	}
	got, err := secretsOf([]corev1.ConfigMap{
		gateway(map[string]string{dataplane.RevisionKey("1"): revision("a"), dataplane.RevisionKey("2"): revision("b", "c"), dataplane.KeyAssignment: "{}", dataplane.KeyEndpoints: "{}"}),
		gateway(map[string]string{dataplane.RevisionKey("3"): revision()}), gateway(nil)})
	if err != nil || !maps.Equal(got, map[string]string{"a": "edge", "b": "edge", "c": "edge"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := secretsOf([]corev1.ConfigMap{gateway(map[string]string{dataplane.RevisionKey("1"): "{"})}); err == nil || !strings.Contains(err.Error(), "edge-dataplane") {
		t.Errorf("of a revision that does not parse: %v", err)
	}
}

// Whatever a Secret holds, reading it ends in a state, never in a panic.
func FuzzObserve(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"), `{"dnsNames":["a"],"issued":"2030-01-02T03:04:05Z"}`)
	key, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		f.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, keyPEM, "{}")
	f.Fuzz(func(t *testing.T, cert, key []byte, requested string) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{v1alpha1.AnnotationRequested: requested}}, Data: map[string][]byte{"tls.crt": cert, "tls.key": key}}
		s := observe("ECDSA-P256", wanted(), 0, secret)
		if (s.Pair == nil) == (s.PairError == nil) {
			t.Fatal("neither a pair nor an error, or both")
		}
		if _, message, violated := evaluate(unusable, s, issuedAt); violated && message == "" {
			t.Fatal("a violation without a message")
		}
		if _, err := keypair.ParseKey(key); err != nil && len(key) > 40 && strings.Contains(err.Error(), string(key[:40])) {
			t.Fatal("key material in an error")
		}
	})
}
