//go:build crypto

package agent

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/testcert"
)

// These tests have the gateway's private keys made by a token, which is
// kryoptic behind the hsmd of crypto/hsmd, and used by way of pkcs11-provider
// and libqtls_pkcs11.so in the gateway image's HAProxy.

const (
	testPool     = "vault"
	memberSecret = "vault-clients"
	tokensDir    = "tokens"
)

// relay stands for the way to a member: it can be cut, and it can be long.
type relay struct {
	t       *testing.T
	address string
	to      string
	// delay of each answer, in nanoseconds.
	delay atomic.Int64
	// turns, if any, has only signatures be delayed, those of several ways one after the
	// other: members that make one at a time.
	turns *sync.Mutex

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	r := &relay{t: t, address: "127.0.0.1:0", to: to, open: map[net.Conn]bool{}}
	r.mend()
	t.Cleanup(r.cut)
	return r
}

func (r *relay) mend() {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.address) // in a network namespace of the test's own
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.listener, r.address = listener, listener.Addr().String()
	r.mu.Unlock()
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", r.to)
			if err != nil {
				from.Close()
				continue
			}
			if !r.keep(listener, from, to) {
				continue
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				to.Close()
				from.Close()
			}
			go pass(to, from)
			go pass(from, delayed{to, &r.delay, r.turns})
		}
	}()
}

// leastSignature is less than an answer with one of ML-DSA-65 has, which are 3309
// bytes, and more than others have.
const leastSignature = 3000

// delayed is a connection whose data comes later.
type delayed struct {
	net.Conn
	by    *atomic.Int64
	turns *sync.Mutex
}

func (d delayed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if d.turns != nil {
		if n < leastSignature {
			return n, err
		}
		d.turns.Lock()
		defer d.turns.Unlock()
	}
	time.Sleep(time.Duration(d.by.Load()))
	return n, err
}

// keep connections to close when the way is cut, unless it has been.
func (r *relay) keep(listener net.Listener, connections ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range connections {
		if r.listener == listener {
			r.open[c] = true
		} else {
			c.Close()
		}
	}
	return r.listener == listener
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener == nil {
		return
	}
	r.listener.Close()
	r.listener = nil
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}

// vault is a pod whose keys lie in a pool of two members: two ways to one
// token.
type vault struct {
	*world
	authority *hsmtest.Authority
	operator  *hsm.Client
	a, b      *relay
	// library is the folder with the token, and with what else is HAProxy's where
	// it has the token itself.
	library string
	made    int
}

// newVault is a gateway with an ML-DSA-65 and an ECDSA-P256 key in the pool, and a
// listener whose key is in a Secret.
func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{world: newWorld(t), authority: hsmtest.NewAuthority(t)}
	v.library = filepath.Join(v.dir, "library")
	tokens := filepath.Join(v.library, tokensDir)
	if err := os.MkdirAll(tokens, 0o755); err != nil {
		t.Fatal(err)
	}
	address := hsmtest.DaemonIn(t, v.authority, "[client "+hsmtest.ClientName+"]\nkeys = web-*\nmay = status, find, sign, generate, retire\n[client gateways]\nkeys = web-*\nmay = find, sign, status\n", tokens)
	credentials := hsm.Credentials{CA: v.authority.PEM()}
	credentials.Certificate, credentials.Key = v.authority.Issue(t, hsmtest.ClientName)
	config, err := credentials.Config(hsmtest.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	v.operator = hsm.New(address, config, patience)
	t.Cleanup(v.operator.Close)
	v.a, v.b = newRelay(t, address), newRelay(t, address)
	certificate, key := v.authority.Issue(t, "gateways")
	v.api.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: memberSecret, UID: "1"},
		Data: map[string][]byte{"ca.crt": v.authority.PEM(), corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}})
	v.carryModule()
	v.rotateInHSM(pqSecret)
	v.rotateInHSM(hsmClassicalSecret)
	v.use(render(t, hsmGateway(v)), 1)
	v.publish()
	return v
}

const hsmClassicalSecret = "vault-ecdsa-p256"

// vaultPort serves the classical key of the pool alone.
const vaultPort = 10445

// hsmGateway serves both keys of the pool on one port, the classical one of them
// on another, and on a third the key that is in a Secret.
func hsmGateway(v *vault) model.Gateway {
	g := testGateway()
	g.HSM = &model.HSM{Pool: testPool, Timeout: patience, Members: []model.HSMMember{
		{Name: "a", Address: v.a.address, ServerName: hsmtest.ServerName, Secret: memberSecret, Sessions: 4},
		{Name: "b", Address: v.b.address, ServerName: hsmtest.ServerName, Secret: memberSecret, Sessions: 4}}}
	certificates := g.Ports[0].Listeners[0].Certificates
	certificates[0].HSMPool = testPool
	certificates[1].HSMPool, certificates[1].Secret = testPool, hsmClassicalSecret
	more := g.Ports[1].Listeners[0]
	more.Name, more.Certificates = "vault", certificates[1:]
	g.Ports = append(g.Ports, model.Port{Number: vaultPort, Listeners: []model.Listener{more}})
	return g
}

// carryModule gives the pod what the gateway's image has, beyond its packages.
func (v *vault) carryModule() {
	v.t.Helper()
	binaries, err := agentBinary()
	if err != nil {
		v.t.Fatal(err)
	}
	const module = "/usr/lib/qtls/libqtls_pkcs11.so"
	built := os.Getenv("QTLS_PKCS11_MODULE")
	if built == "" {
		v.t.Skip("QTLS_PKCS11_MODULE is not set: `make test-crypto` sets it to libqtls_pkcs11.so (crypto/pkcs11)")
	}
	copyFile(v.t, built, filepath.Join(binaries, "libqtls_pkcs11.so"))
	own, err := os.ReadFile(filepath.Join(v.rootfs, "etc/ssl/openssl.cnf"))
	if err != nil {
		v.t.Fatal(err)
	}
	more, err := os.ReadFile("../../images/gateway/pkcs11.cnf")
	if err != nil {
		v.t.Fatal(err)
	}
	if strings.Count(string(more), module) != 1 {
		v.t.Fatalf("images/gateway/pkcs11.cnf does not name %s once", module)
	}
	text := string(own) + strings.ReplaceAll(string(more), module, "/run/bin/libqtls_pkcs11.so")
	if err := os.WriteFile(filepath.Join(binaries, "openssl.cnf"), []byte(text), 0o644); err != nil {
		v.t.Fatal(err)
	}
	v.env = append(v.env, "OPENSSL_CONF=/run/bin/openssl.cnf", haproxy.PKCS11Environment+"="+haproxy.CurrentDir+"/"+haproxy.PKCS11File)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// rotateInHSM has the token make a key, and puts a certificate of it into a
// Secret.
func (v *vault) rotateInHSM(name string) {
	v.t.Helper()
	v.made++
	v.makeKey(name, fmt.Sprintf("web-%d", v.made))
}

// makeKey is rotateInHSM with a label for the key.
func (v *vault) makeKey(name, label string) {
	v.t.Helper()
	f, algorithm := v.classical, v1alpha1.KeyAlgorithm("ECDSA-P256")
	if name == pqSecret {
		f, algorithm = v.pq, "ML-DSA-65"
	}
	if _, err := v.operator.Generate(v.t.Context(), algorithm, hsm.Key{Label: label}); err != nil {
		v.t.Fatal(err)
	}
	signer, err := hsm.NewSigner(v.t.Context(), hsm.Key{Label: label}, v.operator)
	if err != nil {
		v.t.Fatal(err)
	}
	c := f.certificate(v.t, signer.Public(), testHost)
	v.serials[name] = c.SerialNumber.Text(16)
	v.api.put(tlsSecret(name, testcert.PEM(c, f.cert), keypair.Reference{Pool: testPool, Label: label}.PEM()))
}

// certificate of a public key.
func (f *family) certificate(t testing.TB, public crypto.PublicKey, dnsNames ...string) *x509.Certificate {
	t.Helper()
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return testcert.Sign(t, &x509.Certificate{SerialNumber: number, DNSNames: dnsNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * time.Hour)}, f.cert, public, f.key)
}

// clients of the two keys of the pool, and of the one in a Secret.
func (v *vault) clients() (pq, classical, software client) {
	return newClient(dualPort, v.pq), newClient(vaultPort, v.classical), newClient(classicalPort, v.classical)
}

// members as the worker says that they are, once they are as wanted.
func (v *vault) members(what string, good func(a, b hsmMemberStatus) bool) (a, b hsmMemberStatus) {
	v.t.Helper()
	v.eventually(what, func() error {
		by, err := v.readMembers()
		if a, b = by["a"], by["b"]; err == nil && !good(a, b) {
			err = fmt.Errorf("a: %+v, b: %+v", a, b)
		}
		return err
	})
	return a, b
}

// statusFile of the one worker.
func (v *vault) statusFile() (string, error) {
	files, err := filepath.Glob(filepath.Join(v.dir, "run", currentLink, hsmDir, statusDir, "*.json"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("status files: %v, %w", files, err)
	}
	return files[0], nil
}

func (v *vault) readMembers() (map[string]hsmMemberStatus, error) {
	file, err := v.statusFile()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var s hsmStatus
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	by := map[string]hsmMemberStatus{}
	for _, m := range s.Members {
		by[m.Name] = m
	}
	return by, nil
}

func (v *vault) serves(what string, c client, secret string) {
	v.t.Helper()
	_, serial, err := c.get("/")
	if err != nil || serial != v.serials[secret] {
		v.t.Errorf("%s: serial number %s, %v; want %s", what, serial, err, v.serials[secret])
	}
}

// signatures that the token itself has made.
func (v *vault) signatures() int64 {
	v.t.Helper()
	s, err := v.operator.Status(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return s.Signatures
}

func TestKeysInAnHSMServe(t *testing.T) {
	v := newVault(t)
	v.start()
	s := v.runs(v.assignment.Stable)
	if !v.served(s) || s.Rejected != nil || s.Waiting != "" || s.Reloads != 0 {
		t.Errorf("status: %+v", s)
	}
	v.members("both members are up", func(a, b hsmMemberStatus) bool {
		return a.State == v1alpha1.HSMMemberUp && b.State == v1alpha1.HSMMemberUp
	})
	before := v.signatures()
	pq, classical, software := v.clients()
	for range 5 {
		v.serves("ML-DSA-65 of the pool", pq, pqSecret)
		v.serves("ECDSA-P256 of the pool", classical, hsmClassicalSecret)
		v.serves("a key in a Secret", software, classicalSecret)
	}
	if made := v.signatures() - before; made != 10 {
		t.Errorf("the token has made %d signatures, want 10", made)
	}
	if _, b := v.members("the first member has signed all", func(a, b hsmMemberStatus) bool { return a.Signatures == 10 }); b.Signatures != 0 {
		t.Errorf("the second one has made %d signatures", b.Signatures)
	}

	// Without the first member, the second signs; then the first does again.
	load := startTraffic(2, pq, classical)
	v.a.cut()
	v.members("the second member signs", func(a, b hsmMemberStatus) bool { return a.State == "Down" && b.Signatures > 10 })
	v.a.mend()
	was, _ := v.members("the first member is back", func(a, b hsmMemberStatus) bool { return a.State == v1alpha1.HSMMemberUp })
	v.members("and signs", func(a, b hsmMemberStatus) bool { return a.Signatures > was.Signatures+10 })
	load.end(t, "the first member is lost and comes back")
}

func TestKeysInAnHSMRotateWithoutAReload(t *testing.T) {
	v := newVault(t)
	v.start()
	v.runs(v.assignment.Stable)
	pq, classical, software := v.clients()
	load := startTraffic(3, pq, classical, software)
	for range 5 {
		for name, c := range map[string]client{pqSecret: pq, hsmClassicalSecret: classical} {
			v.rotateInHSM(name)
			v.statusIs("the new certificate", v.served)
			v.serves("the new certificate", c, name)
		}
	}
	load.end(t, "10 rotations of keys in an HSM")
	if s := v.look(); s.Reloads != 0 {
		t.Errorf("%d reloads", s.Reloads)
	}
	// A reload reads the files: they have the last keys too.
	if err := v.master().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.serves("after a reload", pq, pqSecret)
	v.serves("after a reload", classical, hsmClassicalSecret)
}

// A process knows one key by a label: where the token has another one under it
// and the certificate is that one's, a new worker serves. Nobody else notices.
func TestAKeyReplacedUnderItsLabel(t *testing.T) {
	v := newVault(t)
	const label = "web-replaced"
	v.makeKey(pqSecret, label)
	v.start()
	v.runs(v.assignment.Stable)
	pq, classical, software := v.clients()
	v.serves("the key of before", pq, pqSecret)
	load := startTraffic(2, classical, software)
	if err := v.operator.Retire(t.Context(), hsm.Key{Label: label}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pq.get("/"); err == nil {
		t.Error("a key that was destroyed serves")
	}
	if s := v.look(); s.Reloads != 0 {
		t.Errorf("%d reloads before there is another key", s.Reloads)
	}
	before := v.signatures()
	v.makeKey(pqSecret, label)
	v.statusIs("the new certificate after one reload", func(s dataplane.Status) bool { return v.served(s) && s.Reloads == 1 })
	for range 5 {
		v.serves("the other key of that label", pq, pqSecret)
	}
	load.end(t, "a key is replaced under its label")
	if made := v.signatures() - before; made < 5 {
		t.Errorf("the token has made %d signatures for 5 handshakes", made)
	}
	if s := v.runs(v.assignment.Stable); s.Reloads != 1 || s.Rejected != nil {
		t.Errorf("status: %+v", s)
	}
}

func TestWithoutAnHSMTheOtherListenersServe(t *testing.T) {
	v := newVault(t)
	v.a.cut()
	v.b.cut()
	v.start()
	v.runs(v.assignment.Stable)
	pq, _, software := v.clients()
	v.serves("a key in a Secret", software, classicalSecret)
	if _, _, err := pq.get("/"); err == nil {
		t.Error("a key that nobody has serves")
	}
	v.serves("a key in a Secret, after a handshake that failed", software, classicalSecret)
	v.b.mend()
	v.eventually("the keys of the pool serve when a member is back", func() error { _, _, err := pq.get("/"); return err })
}

func TestTheFastProviderAndAnHSMServeTogether(t *testing.T) {
	v := newVault(t)
	v.carryProvider()
	g := hsmGateway(v)
	g.TLS.Vectorized = true
	v.use(render(t, g), 2)
	v.publish()
	v.start()
	v.runs(v.assignment.Stable)
	pq, classical, software := v.clients()
	before := v.signatures()
	v.serves("ML-DSA-65 of the pool", pq, pqSecret)
	v.serves("ECDSA-P256 of the pool", classical, hsmClassicalSecret)
	v.serves("a key in a Secret", software, classicalSecret)
	if made := v.signatures() - before; made != 2 {
		t.Errorf("the token has made %d signatures, want 2", made)
	}
}

// The pod has the library and the PIN itself; what the token is asked for, it is
// asked in HAProxy's process. The other member is the same token, behind hsmd.
func TestALibraryInThePodSigns(t *testing.T) {
	v := newVault(t)
	writePIN := v.carryLibrary("a")
	g := hsmGateway(v)
	g.HSM.Members[0] = model.HSMMember{Name: "a", InPod: true, Sessions: 4}
	v.use(render(t, g), 2)
	v.publish()
	v.start()
	s := v.runs(v.assignment.Stable)
	if !v.served(s) || s.Rejected != nil {
		t.Errorf("status: %+v", s)
	}
	bothUp := func(a, b hsmMemberStatus) bool {
		return a.State == v1alpha1.HSMMemberUp && b.State == v1alpha1.HSMMemberUp
	}
	v.members("both members are up", bothUp)
	before := v.signatures()
	pq, classical, software := v.clients()
	for range 5 {
		v.serves("ML-DSA-65 of the pool", pq, pqSecret)
		v.serves("ECDSA-P256 of the pool", classical, hsmClassicalSecret)
		v.serves("a key in a Secret", software, classicalSecret)
	}
	v.members("the library has signed all", func(a, b hsmMemberStatus) bool { return a.Signatures == 10 && b.Signatures == 0 })
	if made := v.signatures() - before; made != 0 {
		t.Errorf("hsmd has made %d signatures", made)
	}

	// Keys that somebody else makes in the token are found.
	load := startTraffic(2, pq, classical, software)
	for name, c := range map[string]client{pqSecret: pq, hsmClassicalSecret: classical} {
		v.rotateInHSM(name)
		v.statusIs("the new certificate", v.served)
		v.serves("the new certificate", c, name)
	}
	if s := v.look(); s.Reloads != 0 {
		t.Errorf("%d reloads for new keys", s.Reloads)
	}

	// A process that starts with a wrong PIN cannot sign; others can, and it can
	// when the file has the right one.
	writePIN("not-" + hsmtest.PIN)
	if err := v.master().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.members("the PIN is refused", func(a, b hsmMemberStatus) bool {
		return a.State == v1alpha1.HSMMemberDown && strings.Contains(a.LastError, "CKR_PIN_INCORRECT") && b.State == v1alpha1.HSMMemberUp
	})
	v.serves("by way of the other member", pq, pqSecret)
	writePIN(hsmtest.PIN)
	v.members("the right PIN is taken up", bothUp)
	v.serves("by the library again", pq, pqSecret)
	load.end(t, "a library in the pod, new keys and a wrong PIN")
	for _, log := range []string{"haproxy.log", "agent.log"} {
		text, err := os.ReadFile(filepath.Join(v.dir, log))
		if err != nil || strings.Contains(string(text), hsmtest.PIN) {
			t.Errorf("%s has the PIN, or is not there: %v", log, err)
		}
	}
}

// carryLibrary gives HAProxy's container the library that the token is of, and
// the token; the agent is told of it. The PIN can be written anew.
func (v *vault) carryLibrary(member string) (writePIN func(pin string)) {
	v.t.Helper()
	const library = "libkryoptic_pkcs11.so"
	v.hsm = v.library
	if err := os.Mkdir(filepath.Join(v.library, member), 0o755); err != nil {
		v.t.Fatal(err)
	}
	copyFile(v.t, os.Getenv("QTLS_HSM_MODULE"), filepath.Join(v.library, library))
	v.write("library/kryoptic.conf", []byte("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"/run/secrets/hsm/"+tokensDir+"/"+hsmtest.TokenFile+"\"\n"))
	// hsmd, which is root here, and the pod's user write to it.
	for path, mode := range map[string]os.FileMode{"": 0o777, hsmtest.TokenFile: 0o666} {
		if err := os.Chmod(filepath.Join(v.library, tokensDir, path), mode); err != nil {
			v.t.Fatal(err)
		}
	}
	v.env = append(v.env, "KRYOPTIC_CONF=/run/secrets/hsm/kryoptic.conf",
		dataplane.LibrariesEnvironment+`={"`+member+`":{"module":"/run/secrets/hsm/`+library+`","token":"gw"}}`)
	writePIN = func(pin string) { // as the kubelet does, by another file
		v.t.Helper()
		v.write("library/"+member+"/next", []byte(pin))
		if err := os.Rename(filepath.Join(v.library, member, "next"), filepath.Join(v.library, member, "pin")); err != nil {
			v.t.Fatal(err)
		}
	}
	writePIN(hsmtest.PIN)
	return writePIN
}

// Each client that leaves while its signature is made leaves a paused job, and
// the more there are, the sooner threads wait instead.
func TestAWorkerWithManyAbandonedJobsIsReplaced(t *testing.T) {
	v := newVault(t)
	v.start()
	v.runs(v.assignment.Stable)
	pq, _, _ := v.clients()
	v.serves("before", pq, pqSecret)
	file, err := v.statusFile()
	if err == nil {
		file, err = filepath.EvalSymlinks(file) // of this tree, and no other
	}
	if err != nil {
		t.Fatal(err)
	}
	many := fmt.Appendf(nil, `{"started":"2020-01-01T00:00:00Z","abandonedJobs":%d,"members":[]}`, mostAbandonedJobs)
	v.statusIs("reloaded once", func(s dataplane.Status) bool {
		if s.Reloads == 0 { // the worker may write its file, too
			_ = os.WriteFile(file, many, 0o600)
		}
		return s.Reloads == 1
	})
	v.serves("after", pq, pqSecret)
	v.members("the new worker signs", func(a, b hsmMemberStatus) bool { return a.Signatures+b.Signatures == 1 })
	if s := v.runs(v.assignment.Stable); s.Reloads != 1 || s.Rejected != nil {
		t.Errorf("status: %+v", s)
	}
}

func TestAGatewayTakesUpAnHSM(t *testing.T) {
	v := newVault(t)
	withHSM := v.assignment.Stable
	software := v.use(render(t, testGateway()), 2)
	v.rotate(pqSecret)
	v.publish()
	v.start()
	v.runs(software)
	pq, _, _ := v.clients()
	load := startTraffic(2, pq)
	// The key's place and the configuration change, in this order or the other.
	v.rotateInHSM(pqSecret)
	v.statusIs("the Secret's content waits for its configuration", func(s dataplane.Status) bool {
		for _, c := range s.Certificates {
			if c.Secret == pqSecret && strings.Contains(c.Error, `lies in HSMPool "vault" where the configuration expects it in the Secret`) {
				return true
			}
		}
		return false
	})
	v.assignment.Stable = withHSM
	v.publish()
	v.runs(withHSM)
	v.statusIs("the new certificate", v.served)
	v.serves("a key of the pool", pq, pqSecret)
	load.end(t, "a key moves into an HSM")
}

// carryProvider gives the pod the OpenSSL provider, beside those that it has.
func (v *vault) carryProvider() {
	v.t.Helper()
	binaries, err := agentBinary()
	if err != nil {
		v.t.Fatal(err)
	}
	modules := filepath.Join(binaries, "ossl-modules")
	if err := os.MkdirAll(modules, 0o755); err != nil {
		v.t.Fatal(err)
	}
	copyFile(v.t, os.Getenv("QTLS_PROVIDER"), filepath.Join(modules, "oqsprovider.so"))
	copyFile(v.t, filepath.Join(v.rootfs, "usr/lib/x86_64-linux-gnu/ossl-modules/pkcs11.so"), filepath.Join(modules, "pkcs11.so"))
	v.env = append(v.env, "OPENSSL_MODULES=/run/bin/ossl-modules")
}
