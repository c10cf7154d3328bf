package resources

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/agentpki"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsmpool"
)

// vendorFolder and vendorModule are where a vendor's library is said to be: it
// is kryoptic.
const (
	vendorFolder = "/opt/vendor"
	vendorModule = vendorFolder + "/vendor.so"
)

// pod of a daemon, as far as it takes no cluster: its containers' commands on
// this machine, with the image's libraries and the operator's files.
type pod struct {
	t   *testing.T
	dir string
	// replace is where the pod's folders are.
	replace *strings.Replacer
	// stop ends the daemon; nothing happens the second time.
	stop func()
}

func newPod(t *testing.T, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, authority *agentpki.Succession, pins map[string][]byte, data string) *pod {
	t.Helper()
	module := os.Getenv("QTLS_HSM_MODULE")
	if os.Getenv("QTLS_GATEWAY_ROOTFS") == "" || os.Getenv("QTLS_HSMD") == "" || module == "" {
		t.Skip("QTLS_GATEWAY_ROOTFS, QTLS_HSMD and QTLS_HSM_MODULE are not set: `make test-unit` sets them to the gateway image's root file system, to hsmd and to the PKCS #11 module of kryoptic, which are built for it")
	}
	p := &pod{t: t, dir: t.TempDir()}
	at := func(name string) string { return filepath.Join(p.dir, name) }
	p.replace = strings.NewReplacer(hsmdConfigDir, at("config"), hsmdTLSDir, at("tls"), hsmdPINDir, at("pin"), hsmdDataDir, data,
		kryopticModule, module, vendorModule, module, vendorFolder, data, "[::]:7443", "127.0.0.1:0", "metrics = [::]:7444", "")
	certificate, err := authority.Issue(hsmpool.DaemonHost(pool, m.Name), x509.ExtKeyUsageServerAuth, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := map[string][]byte{}
	for name, text := range HsmdConfig(pool, m).Data {
		config[name] = []byte(p.replace.Replace(text))
	}
	for folder, files := range map[string]map[string][]byte{"config": config, "tls": certificate, "pin": pins} {
		if err := os.Mkdir(at(folder), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(at(folder), name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

func (p *pod) command(c corev1.Container) *exec.Cmd {
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	args := []string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), os.Getenv("QTLS_HSMD")}
	for _, a := range c.Command[1:] {
		args = append(args, p.replace.Replace(a))
	}
	cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), args...)
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+p.replace.Replace(e.Value))
	}
	return cmd
}

// initialise runs the init containers.
func (p *pod) initialise(spec corev1.PodSpec) {
	for _, c := range spec.InitContainers {
		if out, err := p.command(c).CombinedOutput(); err != nil {
			p.t.Errorf("%s: %v: %s", c.Name, err, out)
		}
	}
}

// run the pod until the test ends, or it is stopped; its address.
func (p *pod) run(spec corev1.PodSpec) string {
	p.t.Helper()
	p.initialise(spec)
	daemon := p.command(spec.Containers[0])
	stderr, err := daemon.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		p.t.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.t.Log(lines.Text())
			if _, address, ok := strings.Cut(lines.Text(), "listening on "); ok {
				listening <- address
			}
		}
	}()
	p.stop = sync.OnceFunc(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = daemon.Wait()
	})
	p.t.Cleanup(p.stop)
	select {
	case address := <-listening:
		return address
	case <-ended:
		p.t.Fatal("hsmd ended before it listened")
		return ""
	}
}

// client of a daemon, as the operator or a gateway is one.
func clientOf(t *testing.T, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, authority *agentpki.Succession, name, address string) *hsm.Client {
	t.Helper()
	data, err := authority.Issue(name, x509.ExtKeyUsageClientAuth, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config, err := hsm.Credentials{CA: data["ca.crt"], Certificate: data["tls.crt"], Key: data["tls.key"]}.Config(hsmpool.DaemonHost(pool, m.Name))
	if err != nil {
		t.Fatal(err)
	}
	c := hsm.New(address, config, time.Minute)
	t.Cleanup(c.Close)
	return c
}

// up waits until a daemon has reached its token.
func up(t *testing.T, c *hsm.Client) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		s, err := c.Status(t.Context())
		if err == nil && s.State == v1alpha1.HSMMemberUp {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not up after a minute: %+v, %v", s, err)
		}
	}
}

func newAuthority(t *testing.T) *agentpki.Succession {
	t.Helper()
	authority, _, _, err := agentpki.Succeed(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func newPINs() map[string][]byte {
	return map[string][]byte{KeyUserPIN: []byte(rand.Text()), KeyOfficerPIN: []byte(rand.Text())}
}

func mustSign(t *testing.T, c *hsm.Client, key hsm.Key) {
	t.Helper()
	signer, err := hsm.NewSigner(t.Context(), key, c)
	if err == nil {
		_, err = signer.Sign(rand.Reader, []byte("message"), crypto.Hash(0))
	}
	if err != nil {
		t.Errorf("key %s: %v", key.Label, err)
	}
}

// hsmd itself, with a token of kryoptic, takes what the operator writes; its
// clients may do what they should, and nothing else.
func TestADaemonTakesTheOperatorsFiles(t *testing.T) {
	pool, authority := softPool(), newAuthority(t)
	m := pool.Spec.Members[0]
	p := newPod(t, pool, m, authority, newPINs(), t.TempDir())
	address := p.run(HsmdStatefulSet(pool, m, settings).Spec.Template.Spec)
	operator := clientOf(t, pool, m, authority, HsmdOperator, address)
	gateways := clientOf(t, pool, m, authority, HsmdGateways, address)
	up(t, operator)
	if s, err := gateways.Status(t.Context()); err != nil || s.Token != "soft-a" {
		t.Errorf("a gateway asks for the status: %+v, %v", s, err)
	}

	key := hsm.Key{Label: "web-1"}
	if _, err := gateways.Generate(t.Context(), "ML-DSA-65", key); hsm.CodeOf(err) != hsm.ActionProhibited {
		t.Errorf("a gateway makes a key: %v", err)
	}
	if o, err := operator.Generate(t.Context(), "ML-DSA-65", key); err != nil || !o.Sensitive || o.Extractable {
		t.Errorf("the operator makes a key: %+v, %v", o, err)
	}
	mustSign(t, gateways, key)
	if err := gateways.Retire(t.Context(), key); hsm.CodeOf(err) != hsm.ActionProhibited {
		t.Errorf("a gateway destroys a key: %v", err)
	}
	for name, c := range map[string]*hsm.Client{
		"a client of another pool's authority": clientOf(t, pool, m, newAuthority(t), HsmdOperator, address),
		"a client of another name":             clientOf(t, pool, m, authority, "somebody", address),
	} {
		if _, err := c.Status(t.Context()); err == nil {
			t.Errorf("%s is let in", name)
		}
	}
	if err := operator.Retire(t.Context(), key); err != nil {
		t.Errorf("the operator destroys a key: %v", err)
	}
}

// Two daemons over one volume: what one makes the other has, at once, and signs
// with when the first is gone. They make the token at the same time.
func TestMembersThatShareATokenHaveTheSameKeys(t *testing.T) {
	pool, authority, pins, data := softPool(), newAuthority(t), newPINs(), t.TempDir()
	var specs []corev1.PodSpec
	var pods []*pod
	for i := range pool.Spec.Members {
		m := &pool.Spec.Members[i]
		m.SoftToken.Storage = v1alpha1.SoftTokenStorage{Shared: true}
		specs = append(specs, HsmdStatefulSet(pool, *m, settings).Spec.Template.Spec)
		pods = append(pods, newPod(t, pool, *m, authority, pins, data))
	}
	var made sync.WaitGroup
	for i, p := range pods {
		made.Go(func() { p.initialise(specs[i]) })
	}
	made.Wait()
	var clients []*hsm.Client
	for i, p := range pods {
		c := clientOf(t, pool, pool.Spec.Members[i], authority, HsmdOperator, p.run(specs[i]))
		up(t, c)
		clients = append(clients, c)
	}
	for i, algorithm := range []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256", "ML-DSA-44", "RSA-2048"} {
		key := hsm.Key{Label: fmt.Sprintf("key-%d", i)}
		made, err := clients[i%2].Generate(t.Context(), algorithm, key)
		if err != nil {
			t.Fatal(err)
		}
		found, err := clients[1-i%2].Find(t.Context(), key)
		if err != nil || !bytes.Equal(found.PublicKey, made.PublicKey) || !found.Sensitive || found.Extractable {
			t.Errorf("%s: the other member has %+v, %v", algorithm, found, err)
		}
	}
	pods[0].stop()
	mustSign(t, clients[1], hsm.Key{Label: "key-0"})
	if err := clients[1].Retire(t.Context(), hsm.Key{Label: "key-0"}); err != nil {
		t.Error(err)
	}
	back := clientOf(t, pool, pool.Spec.Members[0], authority, HsmdOperator, pods[0].run(specs[0]))
	up(t, back)
	mustSign(t, back, hsm.Key{Label: "key-2"})
	if _, err := back.Find(t.Context(), hsm.Key{Label: "key-0"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("a key that the other member destroyed: %v", err)
	}
}

// A vendor's library, with its configuration and environment: here kryoptic,
// with a token that is there already.
func TestADaemonWithAVendorsLibrary(t *testing.T) {
	pool, authority, pins, data := softPool(), newAuthority(t), newPINs(), t.TempDir()
	soft := pool.Spec.Members[0]
	newPod(t, pool, soft, authority, pins, data).initialise(HsmdStatefulSet(pool, soft, settings).Spec.Template.Spec)
	conf := strings.ReplaceAll(HsmdConfig(pool, soft).Data[kryopticConfigFile], hsmdDataDir, data)
	if err := os.WriteFile(filepath.Join(data, "vendor.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	m := v1alpha1.HSMMember{Name: "vendor", Daemon: &v1alpha1.HSMDaemon{HSMToken: v1alpha1.HSMToken{Token: "soft-a", Sessions: 2}, Module: v1alpha1.HSMModule{
		Folder: vendorFolder, Path: vendorModule, Environment: []v1alpha1.HSMModuleVariable{{Name: "KRYOPTIC_CONF", Value: vendorFolder + "/vendor.conf"}}}}}
	p := newPod(t, pool, m, authority, pins, data)
	c := clientOf(t, pool, m, authority, HsmdOperator, p.run(HsmdStatefulSet(pool, m, settings).Spec.Template.Spec))
	up(t, c)
	if s, err := c.Status(t.Context()); err != nil || s.Token != "soft-a" || s.Sessions != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := c.Generate(t.Context(), "ECDSA-P256", hsm.Key{Label: "web-1"}); err != nil {
		t.Error(err)
	}
}

// What is wrong with a library is told by the daemon, which listens all the
// same: it is the HSMPool's to say.
func TestADaemonWithoutItsLibrary(t *testing.T) {
	pool, authority, data := softPool(), newAuthority(t), t.TempDir()
	m := v1alpha1.HSMMember{Name: "vendor", Daemon: &v1alpha1.HSMDaemon{HSMToken: v1alpha1.HSMToken{Token: "gw"}, Module: v1alpha1.HSMModule{
		Folder: vendorFolder, Path: vendorFolder + "/nothing.so"}}}
	p := newPod(t, pool, m, authority, newPINs(), data)
	c := clientOf(t, pool, m, authority, HsmdOperator, p.run(HsmdStatefulSet(pool, m, settings).Spec.Template.Spec))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		s, err := c.Status(t.Context())
		if err == nil && s.State == v1alpha1.HSMMemberDown && s.Code() == hsm.LibraryLoadFailed && strings.Contains(s.LastError, "nothing.so") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", s, err)
		}
	}
}
