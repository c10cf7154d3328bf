package agent

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/testcert"
)

func vaultHSM() *dataplane.HSM {
	return &dataplane.HSM{Pool: "vault", TimeoutMilliseconds: 2000, Members: []dataplane.HSMMember{
		{Name: "a", Address: "vault-a-hsmd.shop.svc:7443", ServerName: "vault-a-hsmd.shop.svc", Secret: "vault-hsm-gateways", Sessions: 16},
		{Name: "b", Address: "[fd00::7]:7443", ServerName: "hsm.example.com", Secret: "elsewhere", Sessions: 40}}}
}

// referring is a Secret whose key lies in the pool.
func referring(t *testing.T, name, label string) *corev1.Secret {
	t.Helper()
	s, _ := newFamily(t, "ML-DSA-65").secret(t, name)
	s.Data[corev1.TLSPrivateKeyKey] = keypair.Reference{Pool: "vault", Label: label}.PEM()
	return s
}

func TestACertificateWhoseKeyLiesInAnHSM(t *testing.T) {
	c, err := parseCertificate(referring(t, "web", "shop/web-ml-dsa-65-1"))
	if err != nil {
		t.Fatal(err)
	}
	if c.HSMPool != "vault" || c.Algorithm != "ML-DSA-65" {
		t.Errorf("certificate: %+v", c)
	}
	if text := string(c.PEM); strings.Count(text, "BEGIN") != 2 || !strings.Contains(text, "BEGIN PKCS#11 PROVIDER URI") {
		t.Errorf("the file holds\n%s", text)
	}
	k, ok := hsmKeyOf(c)
	block, _ := pem.Decode(k.public)
	if !ok || k.label != "shop/web-ml-dsa-65-1" || block == nil || block.Type != "PUBLIC KEY" {
		t.Errorf("key %+v, %v", k, ok)
	}
	own, _ := newFamily(t, "ECDSA-P256").secret(t, "own")
	if c, err = parseCertificate(own); err != nil {
		t.Fatal(err)
	}
	if k, ok := hsmKeyOf(c); ok {
		t.Errorf("a key in a Secret is taken for %q of an HSM", k.label)
	}
}

// The operator destroys no key that HAProxy signs with, or would after a start.
func TestTheStatusTellsTheKeysInHSMs(t *testing.T) {
	parse := func(name, label string) *certificate {
		c, err := parseCertificate(referring(t, name, label))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	s := settled()
	s.current.Certificates = map[string]*certificate{"pq": parse("pq", "web-2"), "too": parse("too", "web-2"), "own": cert("own", "ECDSA-P256", "1")}
	running := &tree{Name: "before", state: state{Certificates: map[string]*certificate{"pq": parse("pq", "web 1")}}}
	if got, want := statusOf(s.observed, s.own, running, nil).HSMKeys, []string{"pkcs11:token=vault;object=web%201;type=private", "pkcs11:token=vault;object=web-2;type=private"}; !slices.Equal(got, want) {
		t.Errorf("while HAProxy has yet to load: %q, want %q", got, want)
	}
	if got, want := statusOf(s.observed, s.own, nil, nil).HSMKeys, []string{"pkcs11:token=vault;object=web-2;type=private"}; !slices.Equal(got, want) {
		t.Errorf("while HAProxy does not run: %q, want %q", got, want)
	}
	// What an agent says that does not tell is told apart from none.
	none, err := json.Marshal(statusOf(observed{}, own{}, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{string(none): true, `{"sequence":1}`: false} {
		var got dataplane.Status
		if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.HSMKeys) != 0 || (got.HSMKeys != nil) != want {
			t.Errorf("%s: %#v, which tells: %t, %v", text, got.HSMKeys, got.HSMKeys != nil, err)
		}
	}
}

func TestALabelThatCannotStandInTheModulesConfiguration(t *testing.T) {
	if _, err := parseCertificate(referring(t, "web", "web #1")); err == nil || !strings.Contains(err.Error(), `Secret "web"`) {
		t.Errorf("%v", err)
	}
}

// A tree has the configuration of its members and of the keys of its
// certificates; one that is about to come is among them before HAProxy hears of
// it.
func TestATreeConfiguresTheModule(t *testing.T) {
	in := trees{dir: t.TempDir()}
	parse := func(label string) *certificate {
		c, err := parseCertificate(referring(t, "web", label))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	now, next := parse("web-1"), parse("web-2")
	revision := dataplane.Revision{HSM: vaultHSM()}
	tr, err := in.write(revision, state{Target: dataplane.Target{Revision: "r"}, Certificates: map[string]*certificate{"web": now}})
	if err != nil {
		t.Fatal(err)
	}
	key := func(c *certificate) string {
		k, _ := hsmKeyOf(c)
		file := in.path(tr.Name, "hsm/keys", digest(k.public)+".pem")
		if content, err := os.ReadFile(file); err != nil || string(content) != string(k.public) {
			t.Errorf("%s holds %q, %v", file, content, err)
		}
		return fmt.Sprintf("\n[key %s]\npublic-key = %s\n", k.label, file)
	}
	want := strings.NewReplacer("RUN", in.dir, "TREE", in.path(tr.Name)).Replace(`# Written by qtls-agent.
[slot]
label = vault
order = ordered
status-dir = TREE/hsm/status
descriptors = 40000

[member a]
address = vault-a-hsmd.shop.svc:7443
server-name = vault-a-hsmd.shop.svc
ca-file = RUN/hsm/vault-hsm-gateways/current/ca.crt
certificate-file = RUN/hsm/vault-hsm-gateways/current/tls.crt
key-file = RUN/hsm/vault-hsm-gateways/current/tls.key
sessions = 16
timeout = 2000ms

[member b]
address = [fd00::7]:7443
server-name = hsm.example.com
ca-file = RUN/hsm/elsewhere/current/ca.crt
certificate-file = RUN/hsm/elsewhere/current/tls.crt
key-file = RUN/hsm/elsewhere/current/tls.key
sessions = 40
timeout = 2000ms
`)
	holds := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(in.path(tr.Name, haproxy.PKCS11File)); err != nil || string(got) != want {
			t.Errorf("%v; got\n%s\nwant\n%s", err, got, want)
		}
	}
	holds(want + key(now))
	if info, err := os.Stat(in.hsmStatusDir(tr.Name)); err != nil || !info.IsDir() {
		t.Errorf("the folder of the status files: %v", err)
	}
	if err := in.writeHSM(tr, next); err != nil {
		t.Fatal(err)
	}
	holds(want + key(now) + key(next))
	// What does not come is not among them any more. Its file goes with the next change: the module may be reading the former
	// configuration yet.
	if err := in.writeHSM(tr); err != nil {
		t.Fatal(err)
	}
	holds(want + key(now))
	files := func() int {
		all, err := os.ReadDir(in.path(tr.Name, "hsm/keys"))
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	if n := files(); n != 2 {
		t.Errorf("%d files of keys, want that of the former configuration, too", n)
	}

	tr.Revision.HSM.Spread = true
	if err := in.writeHSM(tr); err != nil {
		t.Fatal(err)
	}
	holds(strings.Replace(want, "order = ordered", "order = spread", 1) + key(now))
	if n := files(); n != 1 {
		t.Errorf("%d files of keys: they pile up with every renewal", n)
	}
}

// The library and the token are the pod's own; the revision says that there is
// such a member.
func TestATreeConfiguresLibrariesInThePod(t *testing.T) {
	c, err := parseCertificate(referring(t, "web", "web-1"))
	if err != nil {
		t.Fatal(err)
	}
	revision := dataplane.Revision{HSM: &dataplane.HSM{Pool: "vault", TimeoutMilliseconds: 2000, Members: []dataplane.HSMMember{
		{Name: "a", InPod: true, Sessions: 4}, {Name: "b", InPod: true, Sessions: 16}}}}
	for name, test := range map[string]struct {
		libraries dataplane.Libraries
		want      string
	}{
		"by label and by serial number": {dataplane.Libraries{"a": {Module: "/opt/luna/lib.so", Token: "gw 1"}, "b": {Module: "/opt/luna/lib.so", Serial: "42"}}, `
[member a]
module = /opt/luna/lib.so
token = gw 1
pin-file = /run/secrets/hsm/a/pin
sessions = 4
timeout = 2000ms

[member b]
module = /opt/luna/lib.so
serial = 42
pin-file = /run/secrets/hsm/b/pin
sessions = 16
timeout = 2000ms
`},
		"the pool has a library that the pod has not": {dataplane.Libraries{"b": {Module: "/opt/luna/lib.so", Token: "gw"}}, `
[member a]
module = /run/qtls/hsm/the-pod-is-older-than-the-library-of-a
token = none
pin-file = /run/secrets/hsm/a/pin
sessions = 4
timeout = 2000ms

[member b]
module = /opt/luna/lib.so
token = gw
pin-file = /run/secrets/hsm/b/pin
sessions = 16
timeout = 2000ms
`},
	} {
		in := trees{t.TempDir(), test.libraries}
		tr, err := in.write(revision, state{Target: dataplane.Target{Revision: "r"}, Certificates: map[string]*certificate{"web": c}})
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(in.path(tr.Name, haproxy.PKCS11File))
		_, members, _ := strings.Cut(string(content), "descriptors = 40000\n")
		members, _, _ = strings.Cut(members, "\n[key ")
		if err != nil || members != test.want {
			t.Errorf("%s: %v; got\n%s\nwant\n%s", name, err, members, test.want)
		}
	}
	if secrets := memberSecrets(observed{published: want(revision, 1, here)}, own{}); len(secrets) > 0 {
		t.Errorf("the agent reads the Secrets %q", secrets)
	}
	if credentialsAwaited(observed{}, revision) {
		t.Error("credentials are waited for")
	}
}

// HAProxy ends at its start if a certificate is not of the key that the module
// has under its label.
func TestARefusedCertificateLeavesNoKey(t *testing.T) {
	a := New(Options{RunDir: t.TempDir(), Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	served, err := parseCertificate(referring(t, "web", "web-1"))
	if err != nil {
		t.Fatal(err)
	}
	if a.current, err = a.trees.write(dataplane.Revision{HSM: vaultHSM()}, state{Target: dataplane.Target{Revision: "r"}, Certificates: map[string]*certificate{"web": served}}); err != nil {
		t.Fatal(err)
	}
	a.proxy = proxy{up: true, tree: a.current.Name}
	file := a.trees.path(a.current.Name, haproxy.PKCS11File)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	answerAll(t, string(a.trees.admin(a.current.Name).Socket), "unable to load certificate\n\n")

	next, err := parseCertificate(referring(t, "web", "web-2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.setCertificate(t.Context(), setCertificate{"web", next}); err != nil {
		t.Fatal(err)
	}
	if got := a.refusedCertificates["web"].digest; got != next.Digest {
		t.Errorf("refused is %q, want %q", got, next.Digest)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("%v; HAProxy would start from\n%s\nwant\n%s", err, after, before)
	}
}

// answerAll commands on a socket with the same.
func answerAll(t *testing.T, socket, answer string) {
	t.Helper()
	answerWith(t, socket, func(string) string { return answer })
}

func TestWhatCannotStandInTheModulesConfigurationIsNoRevision(t *testing.T) {
	for name, change := range map[string]func(*dataplane.HSM){
		"a pool":                    func(h *dataplane.HSM) { h.Pool = "vault\n[key x]" },
		"no time-out":               func(h *dataplane.HSM) { h.TimeoutMilliseconds = 0 },
		"no member":                 func(h *dataplane.HSM) { h.Members = nil },
		"a member":                  func(h *dataplane.HSM) { h.Members[0].Name = "a]" },
		"an address":                func(h *dataplane.HSM) { h.Members[0].Address = "a:1\nmodule = /x" },
		"an address without port":   func(h *dataplane.HSM) { h.Members[0].Address = "vault" },
		"a server name":             func(h *dataplane.HSM) { h.Members[0].ServerName = "a b" },
		"no sessions":               func(h *dataplane.HSM) { h.Members[0].Sessions = 0 },
		"too many sessions":         func(h *dataplane.HSM) { h.Members[0].Sessions = 65 },
		"an address of a library":   func(h *dataplane.HSM) { h.Members[0].InPod = true },
		"a Secret above the folder": func(h *dataplane.HSM) { h.Members[0].Secret = "../x" },
	} {
		h := vaultHSM()
		change(h)
		r := dataplane.Revision{HSM: h}
		var u *unusable
		if _, err := parsePublished(publish(r).data(t), "web-1"); !errors.As(err, &u) || u.Target.Revision != r.Name() {
			t.Errorf("%s: %v", name, err)
		}
	}
	inPod := vaultHSM()
	inPod.Members[0] = dataplane.HSMMember{Name: "a", InPod: true, Sessions: 4}
	for _, h := range []*dataplane.HSM{vaultHSM(), inPod} {
		if _, err := parsePublished(publish(dataplane.Revision{HSM: h}).data(t), "web-1"); err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{"hsm/status/1.json", haproxy.PKCS11File} {
		r := dataplane.Revision{Files: map[string]string{file: ""}}
		if _, err := parsePublished(publish(r).data(t), "web-1"); err == nil {
			t.Errorf("a revision may write %s", file)
		}
	}
}

func TestDecideAboutHSMs(t *testing.T) {
	inVault := dataplane.Revision{Config: "vault", HSM: vaultHSM(), Backends: oneBackend,
		Certificates: []dataplane.Certificate{{Name: "pq", Secret: "pq", Algorithm: "ML-DSA-65", HSMPool: "vault"}}}
	known := func(s *situation) {
		s.credentials = map[string]credentials{"vault-hsm-gateways": {digest: "1"}, "elsewhere": {}}
		s.written = map[string]string{"vault-hsm-gateways": "1"}
	}
	publish := func(s *situation) {
		known(s)
		s.published = want(inVault, 2, here)
		c := cert("pq", "ML-DSA-65", "2")
		c.HSMPool = "vault"
		s.secrets["pq"] = secret{Certificate: c}
	}
	abandoned := func(s *situation) {
		s.hsm, s.hsmWorker, s.hsmAge = &hsmStatus{AbandonedJobs: mostAbandonedJobs}, s.proxy.worker, leastAge
	}
	parse := func(name, label string) *certificate {
		c, err := parseCertificate(referring(t, name, label))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// served is a gateway with two certificates of one key, as it runs; renew has
	// the first one's Secret name a key by a label.
	served := func(s *situation) {
		known(s)
		both := inVault
		both.Certificates = append(slices.Clone(inVault.Certificates), dataplane.Certificate{Name: "too", Secret: "too", Algorithm: "ML-DSA-65", HSMPool: "vault"})
		one := parse("pq", "web-1")
		one.Digest, one.Secret = "1", "pq"
		too := *one
		too.Secret = "too"
		s.published = want(both, 1, here)
		s.current.Revision, s.current.Target = both, s.published.Target
		s.current.Certificates = map[string]*certificate{"pq": one, "too": &too}
		s.secrets = map[string]secret{"pq": {Certificate: one}, "too": {Certificate: &too}}
	}
	renew := func(s *situation, label string) *certificate {
		served(s)
		next := parse("pq", label)
		next.Digest = "2"
		s.secrets["pq"] = secret{Certificate: next}
		return next
	}
	for _, c := range []struct {
		name   string
		change func(*situation)
		want   string
	}{
		{"a key under another label is set", func(s *situation) { renew(s, "web-2") }, "set certificate pq:2"},
		{"another certificate of the key is set", func(s *situation) {
			served(s)
			same := *s.secrets["pq"].Certificate
			same.Digest = "2"
			s.secrets["pq"] = secret{Certificate: &same}
		}, "set certificate pq:2"},
		{"another key under the label wants a new worker", func(s *situation) { renew(s, "web-1") }, "install vault, generation 1, with pq:2 too:1"},
		{"with all certificates that have it", func(s *situation) {
			too := *renew(s, "web-1")
			too.Secret = "too"
			s.secrets["too"] = secret{Certificate: &too}
		}, "install vault, generation 1, with pq:2 too:2"},
		{"also where another certificate has the label", func(s *situation) {
			renew(s, "web-1")
			s.current.Certificates["pq"] = cert("pq", "ML-DSA-65", "1")
		}, "install vault, generation 1, with pq:2 too:1"},
		{"but is tried once", func(s *situation) {
			renew(s, "web-1")
			s.refusals = refusals{{key: decide(s.observed, s.own).(install).key()}}
		}, "nothing"},
		{"keys in an HSM are installed", publish, "install vault, generation 2, with pq:2"},
		{"a key in the Secret is not what a revision with an HSM is for", func(s *situation) {
			publish(s)
			s.secrets["pq"] = secret{Certificate: cert("pq", "ML-DSA-65", "2")}
		}, "set certificate pq:2"},
		{"nor a key of another pool", func(s *situation) {
			publish(s)
			s.secrets["pq"].Certificate.HSMPool = "other"
		}, "nothing"},
		{"a key that moves into an HSM waits for its revision", func(s *situation) {
			publish(s)
			s.published = want(firstRevision, 1, here)
		}, "nothing"},
		{"credentials come first", func(s *situation) { publish(s); delete(s.written, "vault-hsm-gateways") }, "set credentials vault-hsm-gateways"},
		{"credentials that were renewed are written", func(s *situation) { known(s); s.written["vault-hsm-gateways"] = "0" }, "set credentials vault-hsm-gateways"},
		{"a Secret that has not been read is waited for", func(s *situation) { publish(s); delete(s.credentials, "elsewhere") }, "nothing"},
		{"a worker with many abandoned jobs is replaced", abandoned, "install first, generation 1, with pq:1"},
		{"one with fewer is not", func(s *situation) { abandoned(s); s.hsm.AbandonedJobs-- }, "nothing"},
		{"nor a young one: clients could have one reload follow the other", func(s *situation) { abandoned(s); s.hsmAge-- }, "nothing"},
		{"nor one that has taken its place", func(s *situation) { abandoned(s); s.hsmWorker = worker{pid: 1} }, "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := settled()
			c.change(&s)
			if got := told(decide(s.observed, s.own)); got != c.want {
				t.Errorf("decides: %s; want: %s", got, c.want)
			}
		})
	}
}

func TestCredentialsOfAMember(t *testing.T) {
	dir := t.TempDir()
	a := New(Options{RunDir: dir, Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	authority := newFamily(t, "ECDSA-P256")
	issue := func() *corev1.Secret {
		s, _ := authority.secret(t, "vault-hsm-gateways")
		s.Data["ca.crt"] = testcert.PEM(authority.cert)
		return s
	}
	whole, renewed := issue(), issue()
	written := func(want *corev1.Secret) {
		t.Helper()
		if next, ok := decideCredentials(a.observed, a.own).(setCredentials); ok {
			if err := a.setCredentials(next); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range credentialKeys {
			content, _ := os.ReadFile(a.trees.credentials("vault-hsm-gateways", currentLink, key))
			if string(content) != string(want.Data[key]) {
				t.Errorf("%s holds %q, want %q", key, content, want.Data[key])
			}
		}
	}
	waiting := func(want string) {
		t.Helper()
		if got := a.waiting(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("waits for %q, want %q", got, want)
		}
		if got := strings.Join(a.memberProblems(), "; "); !strings.Contains(got, want) || (want == "") != (got == "") ||
			want != "" && !strings.Contains(got, "; store in it ca.crt, tls.crt, tls.key of a client") {
			t.Errorf("tells %q of the member's Secret, want %q and the remedy", got, want)
		}
	}
	a.published = want(dataplane.Revision{HSM: vaultHSM()}, 1)
	a.memberSecret("vault-hsm-gateways", nil, nil)
	written(&corev1.Secret{})
	waiting(`Secret vault-hsm-gateways does not exist`)
	a.memberSecret("vault-hsm-gateways", whole, nil)
	written(whole)
	waiting("")
	a.memberSecret("vault-hsm-gateways", nil, errors.New("forbidden")) // what was written stays
	written(whole)
	waiting("forbidden")
	for says, damage := range map[string]func(data map[string][]byte){
		`Secret "vault-hsm-gateways" has no tls.crt`:     func(data map[string][]byte) { data["tls.crt"] = nil },
		"ca.crt holds no certificate":                    func(data map[string][]byte) { data["ca.crt"] = []byte("CA") },
		"tls.crt and tls.key: tls: failed to find":       func(data map[string][]byte) { data["tls.key"] = data["tls.key"][:40] },
		"tls.crt and tls.key: tls: private key does not": func(data map[string][]byte) { data["tls.key"] = renewed.Data["tls.key"] },
	} {
		part := whole.DeepCopy()
		damage(part.Data)
		a.memberSecret("vault-hsm-gateways", part, nil)
		written(whole)
		waiting(says)
	}
	a.memberSecret("vault-hsm-gateways", renewed, nil)
	written(renewed)
	waiting("")

	// When nothing needs them they go, and are written again when something does.
	a.forgetMember("vault-hsm-gateways")
	if _, err := os.Stat(a.trees.credentials("vault-hsm-gateways")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("credentials that nothing needs: %v", err)
	}
	written(&corev1.Secret{})
	a.memberSecret("vault-hsm-gateways", renewed, nil)
	written(renewed)
}

// A module that connects meanwhile gets a certificate and its own key: the three
// files are replaced together, and those that it has begun to read stay.
func TestCredentialsAreReplacedAtOnce(t *testing.T) {
	a := New(Options{RunDir: t.TempDir(), Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	authority := newFamily(t, "ECDSA-P256")
	// replace the credentials; it returns them and the folder that has them.
	replace := func() (*corev1.Secret, string) {
		t.Helper()
		s, _ := authority.secret(t, "vault-hsm-gateways")
		s.Data["ca.crt"] = testcert.PEM(authority.cert)
		c, err := parseCredentials(s)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // as an agent that is started anew does
			if err := a.setCredentials(setCredentials{"vault-hsm-gateways", c}); err != nil {
				t.Fatal(err)
			}
		}
		folder, err := filepath.EvalSymlinks(a.trees.credentials("vault-hsm-gateways", currentLink))
		if err != nil {
			t.Fatal(err)
		}
		return s, folder
	}
	has := func(folder string, s *corev1.Secret) {
		t.Helper()
		for _, key := range credentialKeys {
			if content, err := os.ReadFile(filepath.Join(folder, key)); err != nil || string(content) != string(s.Data[key]) {
				t.Errorf("%s holds %q (%v), want %q", key, content, err, s.Data[key])
			}
		}
	}
	first, one := replace()
	has(one, first)
	second, two := replace()
	has(two, second)
	has(one, first)
	third, three := replace()
	has(three, third)
	has(two, second)
	if _, err := os.Stat(one); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the credentials before those of before: %v", err)
	}
}

func TestMetricsOfHSMs(t *testing.T) {
	dir := t.TempDir()
	metrics := NewMetrics()
	a := New(Options{RunDir: dir, Metrics: metrics, Log: slog.New(slog.DiscardHandler)})
	tr, err := a.trees.write(dataplane.Revision{HSM: vaultHSM()}, state{Target: dataplane.Target{Revision: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	a.current, a.proxy = tr, proxy{up: true, tree: tr.Name, worker: worker{pid: 7}}
	samples := func() map[string]float64 {
		t.Helper()
		a.lookAtHSM()
		a.report()
		families, err := metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "qtls_hsm_") {
				continue
			}
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				if s := m.GetSummary(); s != nil {
					found[name+" count"], found[name+" sum"] = float64(s.GetSampleCount()), s.GetSampleSum()
				} else {
					found[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		return found
	}
	if got := samples(); len(got) != 0 {
		t.Errorf("before the worker says anything: %v", got)
	}
	status := `{"pid":7,"started":"2020-01-01T00:00:00Z","slot":"vault","abandonedJobs":3,"members":[
		{"name":"a","state":"Up","sessions":4,"signatures":9,"failures":2,"failovers":1,"latencyMicros":{"count":9,"sum":4500000,"max":9},"lastError":"an earlier one","since":"2026-06-01T00:00:00Z"},
		{"name":"b","state":"Down","sessions":0,"signatures":0,"failures":0,"failovers":0,"latencyMicros":{"count":0,"sum":0,"max":0},"lastError":"hsmd b:7443: Connection refused","since":"2026-06-01T00:00:00Z"}]}`
	if err := os.WriteFile(a.trees.hsmStatusDir(tr.Name)+"/7.json", []byte(status), 0o600); err != nil {
		t.Fatal(err)
	}
	if a.lookAtHSM(); a.hsmAge < time.Hour {
		t.Errorf("a worker of long ago has the age %s", a.hsmAge)
	}
	want := map[string]float64{"qtls_hsm_abandoned_jobs": 3,
		"qtls_hsm_member_up a": 1, "qtls_hsm_sessions a": 4, "qtls_hsm_signature_failures_total a": 2, "qtls_hsm_failovers_total a": 1,
		"qtls_hsm_signature_duration_seconds a count": 9, "qtls_hsm_signature_duration_seconds a sum": 4.5,
		"qtls_hsm_member_up b": 0, "qtls_hsm_sessions b": 0, "qtls_hsm_signature_failures_total b": 0, "qtls_hsm_failovers_total b": 0,
		"qtls_hsm_signature_duration_seconds b count": 0, "qtls_hsm_signature_duration_seconds b sum": 0}
	if diff := cmp.Diff(want, samples()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	seen, _ := a.status.get()
	if diff := cmp.Diff([]dataplane.HSMMemberStatus{{Name: "a", State: "Up"}, {Name: "b", State: "Down", Error: "hsmd b:7443: Connection refused"}}, seen.HSM); diff != "" {
		t.Errorf("status (-want +got)\n%s", diff)
	}
}
