package issuers

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// ca makes the Secret of an authority (of a leaf, if not isCA).
func ca(t *testing.T, name string, algorithm v1alpha1.KeyAlgorithm, isCA bool) *corev1.Secret {
	t.Helper()
	key, err := pki.GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	requestPEM, err := pki.NewRequest(key, pki.Names{CommonName: name})
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(requestPEM)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := pki.SelfSign(pki.Order{Request: request, IsCA: isCA, KeyUsage: x509.KeyUsageDigitalSignature, Duration: time.Hour}, key, now)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pki.CertificatesPEM(issued.Chain.Leaf()), "tls.key": keyPEM}}
}

func refs(names ...string) []v1alpha1.SecretReference {
	var out []v1alpha1.SecretReference
	for _, n := range names {
		out = append(out, v1alpha1.SecretReference{Name: n})
	}
	return out
}

func TestAssemble(t *testing.T) {
	pq, pq2, classical, leaf := ca(t, "pq", "ML-DSA-65", true), ca(t, "pq2", "ML-DSA-87", true), ca(t, "classical", "ECDSA-P256", true), ca(t, "leaf", "ECDSA-P256", false)
	noKey, mixed, broken := pq.DeepCopy(), pq.DeepCopy(), pq.DeepCopy()
	delete(noKey.Data, "tls.key")
	mixed.Data["tls.key"] = pq2.Data["tls.key"]
	broken.Data["tls.crt"] = []byte("hello")
	for name, c := range map[string]struct {
		secrets []*corev1.Secret // nil: not there
		at      time.Time
		sound   []string
		reason  string
		says    string
	}{
		"both families":    {[]*corev1.Secret{pq, classical}, now, []string{"pq", "classical"}, "", ""},
		"one family":       {[]*corev1.Secret{classical}, now, []string{"classical"}, "", ""},
		"the same twice":   {[]*corev1.Secret{pq, pq2}, now, nil, v1alpha1.ReasonSameFamily, `"pq" and "pq2" hold authorities of the same family (PostQuantum)`},
		"one not there":    {[]*corev1.Secret{pq, nil}, now, []string{"pq"}, v1alpha1.ReasonSecretNotFound, `"missing" is not there in namespace "ns"`},
		"without a key":    {[]*corev1.Secret{noKey}, now, nil, v1alpha1.ReasonSecretInvalid, "key tls.key is missing"},
		"another's key":    {[]*corev1.Secret{mixed}, now, nil, v1alpha1.ReasonKeyMismatch, "does not belong"},
		"broken":           {[]*corev1.Secret{broken}, now, nil, v1alpha1.ReasonSecretInvalid, "tls.crt: no certificate"},
		"not an authority": {[]*corev1.Secret{leaf}, now, nil, v1alpha1.ReasonNotAnAuthority, "CA:TRUE"},
		"expired":          {[]*corev1.Secret{pq}, now.Add(time.Hour), nil, v1alpha1.ReasonCertificateExpired, "expired at 2030-01-02T04:04:05Z"},
		"not yet valid":    {[]*corev1.Secret{pq}, now.Add(-time.Hour), nil, v1alpha1.ReasonCertificateNotYetValid, "not valid before 2030-01-02T02:59:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			there := map[string]*corev1.Secret{}
			var names []string
			for _, s := range c.secrets {
				if s == nil {
					names = append(names, "missing")
					continue
				}
				there[s.Name] = s
				names = append(names, s.Name)
			}
			got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs(names...)}, there, inNoHSM(t), c.at)
			if err != nil {
				t.Fatal(err)
			}
			var sound []string
			for _, a := range got.List {
				sound = append(sound, a.SecretName)
			}
			if !slices.Equal(sound, c.sound) {
				t.Errorf("sound: %v, want %v", sound, c.sound)
			}
			switch {
			case c.reason == "" && len(got.Problems) > 0:
				t.Errorf("problem: %v", got.Problems[0])
			case c.reason != "" && (len(got.Problems) != 1 || got.Problems[0].Reason != c.reason || !strings.Contains(got.Problems[0].Message, c.says)):
				t.Errorf("problems: %+v, want one of %s that says %q", got.Problems, c.reason, c.says)
			}
			for _, p := range got.Problems {
				if strings.Contains(p.Message, "-----BEGIN PRIVATE KEY-----\n") {
					t.Error("key material in a message")
				}
			}
		})
	}
}

// Time alone makes an authority valid: nothing else would wake its issuer.
func TestAnAuthorityThatIsNotYetValidIsWaitedFor(t *testing.T) {
	got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, map[string]*corev1.Secret{"pq": ca(t, "pq", "ML-DSA-65", true)}, inNoHSM(t), now.Add(-time.Hour))
	if err != nil || len(got.Problems) != 1 {
		t.Fatalf("%+v, %v", got.Problems, err)
	}
	// It is valid from five minutes before now on, and clocks may differ by as much.
	if after := got.Problems[0].After; after != 50*time.Minute {
		t.Errorf("it is looked at again after %s", after)
	}
	if got, err = assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, map[string]*corev1.Secret{"pq": ca(t, "pq", "ML-DSA-65", true)}, inNoHSM(t), now.Add(-10*time.Minute)); err != nil || len(got.List) != 1 {
		t.Errorf("then: %+v, %v", got.Problems, err)
	}
}

// inNoHSM is for authorities whose keys lie in their Secrets.
func inNoHSM(t *testing.T) finder {
	return func(r keypair.Reference) (crypto.Signer, error) {
		t.Errorf("the HSMs are asked for %+v", r)
		return nil, errors.New("no HSM")
	}
}

// An authority whose key lies in an HSM: its Secret names the key.
func TestAuthoritiesWithTheirKeysInHSMs(t *testing.T) {
	there, other := ca(t, "pq", "ML-DSA-65", true), ca(t, "other", "ML-DSA-65", true)
	key := func(s *corev1.Secret) crypto.Signer {
		k, err := keypair.ParseKey(s.Data["tls.key"])
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	label := keypair.Reference{Pool: "pool", Label: "pq-1"}
	held, broken := there.DeepCopy(), there.DeepCopy()
	held.Data["tls.key"] = label.PEM()
	broken.Data["tls.key"] = []byte(strings.Replace(string(label.PEM()), "\n", "\nAAAA", 1))
	asked := errors.New("the API server is away")
	for name, c := range map[string]struct {
		secret *corev1.Secret
		key    crypto.Signer
		err    error
		reason string // of the problem; empty: it is sound
		says   string
	}{
		"there":                {held, key(there), nil, "", ""},
		"another key":          {held, key(other), nil, v1alpha1.ReasonKeyMismatch, "does not belong"},
		"not to be had":        {held, nil, conditions.Waiting(time.Second, v1alpha1.ReasonHSMNotReady, "no member answers"), v1alpha1.ReasonHSMNotReady, `Secret "pq" in namespace "ns": no member answers`},
		"a reference to what?": {broken, nil, nil, v1alpha1.ReasonSecretInvalid, "PKCS #11 URI"},
	} {
		t.Run(name, func(t *testing.T) {
			find := func(r keypair.Reference) (crypto.Signer, error) {
				if r != label {
					t.Errorf("asked for %+v", r)
				}
				return c.key, c.err
			}
			got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, map[string]*corev1.Secret{"pq": c.secret}, find, now)
			switch {
			case err != nil:
				t.Error(err)
			case c.reason == "" && (len(got.List) != 1 || got.List[0].HSMPool != "pool" || len(got.Problems) > 0):
				t.Errorf("%+v", got)
			case c.reason != "" && (len(got.Problems) != 1 || got.Problems[0].Reason != c.reason || !strings.Contains(got.Problems[0].Message, c.says)):
				t.Errorf("problems: %+v, want one of %s that says %q", got.Problems, c.reason, c.says)
			}
			if p, waits := conditions.AsProblem(c.err); waits && got.Problems[0].After != p.After {
				t.Errorf("it is looked at again after %s", got.Problems[0].After)
			}
		})
	}
	// What cannot be read is not the issuer's fault here, either.
	find := func(keypair.Reference) (crypto.Signer, error) { return nil, asked }
	if _, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, map[string]*corev1.Secret{"pq": held}, find, now); !errors.Is(err, asked) {
		t.Errorf("error %v", err)
	}
}

func TestForFindsTheFamily(t *testing.T) {
	pq := ca(t, "pq", "ML-DSA-65", true)
	got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, map[string]*corev1.Secret{"pq": pq}, inNoHSM(t), now)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := got.For(algorithms.PostQuantum); !ok || a.SecretName != "pq" {
		t.Errorf("%+v, %t", a, ok)
	}
	if _, ok := got.For(algorithms.Classical); ok {
		t.Error("an authority of a family that there is none of")
	}
}

// What cannot be read is not the issuer's fault, and no condition of it.
func TestErrorsOfReadingAreNoProblemsOfTheIssuer(t *testing.T) {
	reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("etcd is away")
		}}).Build()
	if _, err := Load(t.Context(), hsmpool.Keys{Secrets: reader, Namespace: "ns"}, &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, now); err == nil || !strings.Contains(err.Error(), "Secret ns/pq: etcd is away") {
		t.Errorf("error %v", err)
	}
}

// The API does not let one ask for it: it would be an error of reading, for ever.
func TestANameThatNoSecretCanHaveIsOfOneThatIsNotThere(t *testing.T) {
	reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("invalid resource name")
		}}).Build()
	got, err := Load(t.Context(), hsmpool.Keys{Secrets: reader, Namespace: "ns"}, &v1alpha1.CAIssuer{SecretRefs: refs("team-a/pq")}, now)
	if err != nil || len(got.Problems) != 1 || got.Problems[0].Reason != v1alpha1.ReasonSecretNotFound {
		t.Errorf("problems %+v, %v", got.Problems, err)
	}
}

func TestLoadReadsTheNamespace(t *testing.T) {
	reader := fake.NewClientBuilder().WithObjects(ca(t, "pq", "ML-DSA-44", true)).Build()
	for namespace, want := range map[string]int{"ns": 1, "other": 0} {
		got, err := Load(t.Context(), hsmpool.Keys{Secrets: reader, Namespace: namespace}, &v1alpha1.CAIssuer{SecretRefs: refs("pq")}, now)
		if err != nil || len(got.List) != want {
			t.Errorf("namespace %s: %d authorities, %v", namespace, len(got.List), err)
		}
	}
}

func TestSecretsOfClusterIssuersLieWithTheOperator(t *testing.T) {
	spec := v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: refs("a", "b")}}
	namespaced := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: spec}
	cluster := &v1alpha1.PQCClusterIssuer{Spec: spec}
	if n := SecretNamespace(namespaced, "qtls-system"); n != "ns" {
		t.Error(n)
	}
	if n := SecretNamespace(cluster, "qtls-system"); n != "qtls-system" {
		t.Error(n)
	}
	for _, i := range []client.Object{namespaced, cluster} {
		if names := SecretNames(i); !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("%T: %v", i, names)
		}
	}
	if names := SecretNames(&v1alpha1.PQCIssuer{Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}); names != nil {
		t.Errorf("a self-signed issuer names %v", names)
	}
}

// A namespace's own authorities may have others below them; a cluster's sign for
// strangers.
func TestWhoSignsAuthorities(t *testing.T) {
	spec := func(s v1alpha1.SubordinateAuthorities) v1alpha1.IssuerSpec {
		return v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: refs("a"), SubordinateAuthorities: s}}
	}
	const remedy = "; name a PQCIssuer with authorities of the namespace's own, or set it to Allow"
	named := metav1.ObjectMeta{Name: "ca"}
	for name, c := range map[string]struct {
		issuer client.Object
		want   string
	}{
		"a namespace's":                    {&v1alpha1.PQCIssuer{ObjectMeta: named, Spec: spec("")}, ""},
		"a namespace's that allows it":     {&v1alpha1.PQCIssuer{ObjectMeta: named, Spec: spec("Allow")}, ""},
		"a namespace's that refuses":       {&v1alpha1.PQCIssuer{ObjectMeta: named, Spec: spec("Refuse")}, `PQCIssuer "ca" signs no certificates of authorities (isCA): its spec.ca.subordinateAuthorities is Refuse` + remedy},
		"the cluster's":                    {&v1alpha1.PQCClusterIssuer{ObjectMeta: named, Spec: spec("")}, `PQCClusterIssuer "ca" signs no certificates of authorities (isCA): its spec.ca.subordinateAuthorities is not set, which stands for Refuse` + remedy},
		"the cluster's that refuses":       {&v1alpha1.PQCClusterIssuer{ObjectMeta: named, Spec: spec("Refuse")}, `PQCClusterIssuer "ca" signs no certificates of authorities (isCA): its spec.ca.subordinateAuthorities is Refuse` + remedy},
		"the cluster's that allows it":     {&v1alpha1.PQCClusterIssuer{ObjectMeta: named, Spec: spec("Allow")}, ""},
		"the cluster's, with no authority": {&v1alpha1.PQCClusterIssuer{ObjectMeta: named, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}, ""},
	} {
		got := ""
		if err := RefusesAuthorities(c.issuer); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Who says that authorities' keys are in a pool has none that is elsewhere sign.
func TestAuthoritiesThatHaveToBeInAPool(t *testing.T) {
	plain := ca(t, "plain", "ECDSA-P256", true)
	held := ca(t, "held", "ML-DSA-65", true)
	key, err := keypair.ParseKey(held.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	held.Data["tls.key"] = keypair.Reference{Pool: "pool", Label: "ca-1"}.PEM()
	find := func(keypair.Reference) (crypto.Signer, error) { return key, nil }
	there := map[string]*corev1.Secret{"plain": plain, "held": held}
	for pool, says := range map[string][]string{
		"pool":  {`Secret "plain" in namespace "ns": its key is in no HSMPool, and spec.ca.hsmRef wants one in HSMPool "pool"`},
		"other": {`Secret "held" in namespace "ns": its key is in HSMPool "pool", and spec.ca.hsmRef wants one in HSMPool "other"`, `Secret "plain" in namespace "ns": its key is in no HSMPool`},
	} {
		got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("held", "plain"), HSMRef: &v1alpha1.HSMPoolReference{Name: pool}}, there, find, now)
		if err != nil || len(got.List) != 2-len(says) || len(got.Problems) != len(says) {
			t.Fatalf("%s: %+v, %v", pool, got, err)
		}
		for i, p := range got.Problems {
			if p.Reason != v1alpha1.ReasonSecretInvalid || !strings.Contains(p.Message, says[i]) || !strings.Contains(p.Message, "take hsmRef away") {
				t.Errorf("%s: %+v, want %q", pool, p, says[i])
			}
		}
	}
	if got, err := assemble("ns", &v1alpha1.CAIssuer{SecretRefs: refs("held", "plain")}, there, find, now); err != nil || len(got.List) != 2 {
		t.Errorf("without hsmRef: %+v, %v", got, err)
	}
}
