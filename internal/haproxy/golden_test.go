package haproxy

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/policy"
	"qtls.dev/qtls/internal/policy/shipped"
	"qtls.dev/qtls/internal/testcert"
	"qtls.dev/qtls/internal/tickets"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	prefer = model.TLS{MinVersion: "TLSv1.2", MaxVersion: "TLSv1.3",
		Curves:              "X25519MLKEM768/SecP384r1MLKEM1024/SecP256r1MLKEM768/X25519:P-256:P-384",
		SignatureAlgorithms: "mldsa65:mldsa87:mldsa44:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:rsa_pss_rsae_sha256",
		CipherSuites:        "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256",
		Ciphers:             "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"}
	strict = model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Curves: "MLKEM1024/SecP384r1MLKEM1024",
		SignatureAlgorithms: "mldsa87", CipherSuites: "TLS_AES_256_GCM_SHA384"}

	kpqc = model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Curves: "p256_smaug_t1/p384_ntru_plus_kem768/smaug_t5", Provider: true,
		SignatureAlgorithms: "p384_haetae3:haetae2:ecdsa_secp256r1_sha256", CipherSuites: "TLS_AES_256_GCM_SHA384"}

	haetae2 = model.Certificate{Secret: "web-haetae2", Algorithm: "haetae2", PostQuantum: true, Provider: true, HandshakeSchemes: []uint16{0xfe4d}, ChainSchemes: []uint16{0xfe4d}}
	haetae3 = model.Certificate{Secret: "web-p384-haetae3", Algorithm: "p384_haetae3", PostQuantum: true, Provider: true, HandshakeSchemes: []uint16{0xfe52}, ChainSchemes: []uint16{0xfe52}}
	mldsa65 = model.Certificate{Secret: "web-ml-dsa-65", Algorithm: "ML-DSA-65", PostQuantum: true, HandshakeSchemes: []uint16{0x0905}, ChainSchemes: []uint16{0x0905}}
	mldsa87 = model.Certificate{Secret: "web-ml-dsa-87", Algorithm: "ML-DSA-87", PostQuantum: true, HandshakeSchemes: []uint16{0x0906}, ChainSchemes: []uint16{0x0905, 0x0906}}
	p256    = model.Certificate{Secret: "web-ecdsa-p256", Algorithm: "ECDSA-P256", HandshakeSchemes: []uint16{0x0403}, ChainSchemes: []uint16{0x0403}}
	p384    = model.Certificate{Secret: "web-ecdsa-p384", Algorithm: "ECDSA-P384", HandshakeSchemes: []uint16{0x0503}, ChainSchemes: []uint16{0x0503}}
	rsa2048 = model.Certificate{Secret: "web-rsa-2048", Algorithm: "RSA-2048", HandshakeSchemes: []uint16{0x0804, 0x0805, 0x0806}, ChainSchemes: []uint16{0x0401}}

	vault = &model.HSM{Pool: "vault", Timeout: 5 * time.Second, Members: []model.HSMMember{
		{Name: "a", Address: "vault-a-hsmd.shop.svc:7443", ServerName: "vault-a-hsmd.shop.svc", Secret: "vault-hsm-gateways", Sessions: 16},
		{Name: "b", Address: "[fd00::7]:7443", ServerName: "hsm.example.com", Secret: "elsewhere", Sessions: 40}}}

	shop = []model.Backend{{Group: "shop:http", Weight: 1}}
)

func gateway(tls model.TLS, ports ...model.Port) model.Gateway {
	return model.Gateway{Namespace: "shop", Name: "web", TLS: tls, DrainTimeoutSeconds: 30, Ports: ports,
		Tickets: &model.Tickets{Ring: "5f0c9b6f3c1d4e7a8b2d6e9f0a1b2c3d", LifetimeSeconds: 3600, RotationSeconds: 7200}}
}

func inVault(c model.Certificate) model.Certificate {
	c.HSMPool = vault.Pool
	return c
}

func https(name string, hostnames []model.Hostname, certificates ...model.Certificate) model.Listener {
	return model.Listener{Name: name, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: hostnames, Certificates: certificates,
		Preference: v1alpha1.PreferPostQuantum, Backends: shop}
}

func with(l model.Listener, change func(*model.Listener)) model.Listener {
	change(&l)
	return l
}

// cases are the gateways whose configurations lie in testdata.
func cases(t testing.TB) map[string]model.Gateway {
	ca := string(authority(t))
	names := func(n ...model.Hostname) []model.Hostname { return n }
	return map[string]model.Gateway{
		"single":        gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, p256)}}),
		"single-name":   gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", names("shop.example.com"), mldsa65)}}),
		"two-classical": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", names("shop.example.com"), p256, rsa2048)}}),
		"dual":          gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", names("shop.example.com"), mldsa65, p256)}}),
		"dual-catch-all": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			https("web", nil, mldsa87, mldsa65, p256, rsa2048)}}),
		"dual-classical-first": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			with(https("web", names("shop.example.com"), mldsa65, p256, rsa2048), func(l *model.Listener) { l.Preference = v1alpha1.PreferClassical })}}),
		"post-quantum-only": gateway(strict, model.Port{Number: 443, Listeners: []model.Listener{https("web", names("shop.example.com"), mldsa87)}}),
		"names-share-a-port": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			https("any", nil, p256),
			https("exact", names("a.example.com", "b.example.com"), mldsa65, p256),
			https("wild", names("*.example.com", "example.com"), p256),
		}}),
		"protocols-share-a-port": gateway(prefer,
			model.Port{Number: 443, Listeners: []model.Listener{
				https("web", names("shop.example.com"), mldsa65, p256),
				{Name: "db", Protocol: v1alpha1.ProtocolTLS, Hostnames: names("db.example.com"), Certificates: []model.Certificate{p256}, Backends: []model.Backend{{Group: "db:5432", Weight: 1}}},
				{Name: "pass", Protocol: v1alpha1.ProtocolTLSPassthrough, Hostnames: names("pass.example.com"), Backends: []model.Backend{{Group: "pass:443", Weight: 1}}},
			}},
			model.Port{Number: 8443, Listeners: []model.Listener{https("admin", nil, p256)}}),
		"passthrough": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			{Name: "pass", Protocol: v1alpha1.ProtocolTLSPassthrough, Hostnames: names("pass.example.com", "*.pass.example.com"), Backends: []model.Backend{{Group: "pass:443", Weight: 1}}}}}),
		"passthrough-catch-all": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			{Name: "pass", Protocol: v1alpha1.ProtocolTLSPassthrough, Backends: []model.Backend{{Group: "pass:443", Weight: 1}}}}}),
		"tls-names-share-a-port": gateway(prefer, model.Port{Number: 5432, Listeners: []model.Listener{
			{Name: "any", Protocol: v1alpha1.ProtocolTLS, Certificates: []model.Certificate{p256}, Backends: []model.Backend{{Group: "db:5432", Weight: 1}}},
			{Name: "named", Protocol: v1alpha1.ProtocolTLS, Hostnames: names("db.example.com"), Certificates: []model.Certificate{mldsa65, p256}, Backends: []model.Backend{{Group: "db:5432", Weight: 1}}}}}),
		"two-curves": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, p384, p256, rsa2048)}}),
		"tls": gateway(prefer, model.Port{Number: 5432, Listeners: []model.Listener{
			{Name: "db", Protocol: v1alpha1.ProtocolTLS, Certificates: []model.Certificate{mldsa65, p256}, Backends: []model.Backend{{Group: "db:5432", Weight: 1}}}}}),
		"client-certificates": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			with(https("required", names("a.example.com"), p256), func(l *model.Listener) {
				l.ClientAuthentication = &model.ClientAuthentication{Required: true, CAs: ca, ForwardCertificate: true}
			}),
			with(https("optional", names("b.example.com"), p256), func(l *model.Listener) {
				l.ClientAuthentication = &model.ClientAuthentication{CAs: ca}
			})}}),
		"re-encrypted": gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{
			with(https("web", nil, p256), func(l *model.Listener) {
				l.Backends = []model.Backend{
					{Group: "shop:https", Weight: 3, TLS: &model.BackendTLS{Hostname: "shop.internal", CAs: ca}},
					{Group: "canary:http", Weight: 1},
				}
			})}}),
		"provider": gateway(kpqc, model.Port{Number: 443, Listeners: []model.Listener{https("web", names("shop.example.com"), haetae3, haetae2, p256)}}),
		"vectorized": with2(gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, mldsa65, p256)}}), func(g *model.Gateway) {
			g.TLS.Vectorized = true
		}),
		"hsm": with2(gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, inVault(mldsa65), inVault(p256))}}), func(g *model.Gateway) {
			g.HSM = vault
		}),
		"hsm-provider-vectorized": with2(gateway(kpqc, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, haetae2, inVault(p256))}}), func(g *model.Gateway) {
			g.HSM, g.TLS.Vectorized = vault, true
		}),
		"no-resumption": with2(gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, p256)}}), func(g *model.Gateway) {
			g.Tickets = nil
		}),
		"observe": with2(gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, p256)}}), func(g *model.Gateway) {
			g.Observe = &model.Acceptable{Versions: []string{"TLSv1.3"}, Groups: []string{"MLKEM1024"}, Suites: []string{"TLS_AES_256_GCM_SHA384"}, Algorithms: []v1alpha1.KeyAlgorithm{"ML-DSA-87"}}
		}),
	}
}

func with2(g model.Gateway, change func(*model.Gateway)) model.Gateway {
	change(&g)
	return g
}

var someEndpoints = dataplane.Endpoints{
	"shop:http":  {{Address: "10.1.0.5", Port: 8080}, {Address: "10.1.0.6", Port: 8080}},
	"shop:https": {{Address: "10.1.0.5", Port: 8443}},
	"db:5432":    {{Address: "fd00::5", Port: 5432}},
}

func TestConfigurationsAreTheGoldenOnes(t *testing.T) {
	for name, g := range cases(t) {
		t.Run(name, func(t *testing.T) {
			revision, err := Render(g)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, golden(revision))
		})
	}
}

func TestPortsOfARevision(t *testing.T) {
	for name, g := range cases(t) {
		revision, err := Render(g)
		if err != nil {
			t.Fatal(err)
		}
		var want []int32
		for _, p := range g.Ports {
			want = append(want, p.Number)
		}
		if got := Ports(revision); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: ports %v, want %v", name, got, want)
		}
		former := strings.ReplaceAll(revision.Config, `"${QTLS_ADDRESS}"`, "::")
		if got := Ports(dataplane.Revision{Config: former}); former == revision.Config || !slices.Equal(got, want) {
			t.Errorf("%s, as a former version wrote it: ports %v, want %v", name, got, want)
		}
	}
}

// golden is a revision as a person reads it. CA bundles differ from run to
// run: they are named only, and not by their digests.
func golden(r dataplane.Revision) []byte {
	var b bytes.Buffer
	b.WriteString(r.Config)
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		fmt.Fprintf(&b, "\n#### %s\n", name)
		if strings.HasPrefix(name, "lists/") {
			b.WriteString(r.Files[name])
		}
	}
	fmt.Fprintf(&b, "\n#### %s\n%s", BackendsFile, Backends(r, Assign(r, nil, someEndpoints)))
	return authoritiesFile.ReplaceAll(b.Bytes(), []byte("ca/digest.pem"))
}

var authoritiesFile = regexp.MustCompile(`ca/[0-9a-f]{32}\.pem`)

// A revision is published in one object, which has room for a bundle, and not for one
// of each listener and backend.
func TestABundleOfAuthoritiesIsInARevisionOnce(t *testing.T) {
	one, other := string(authority(t)), string(authority(t))
	listener := func(name, clients, servers string) model.Listener {
		return with(https(name, []model.Hostname{model.Hostname(name + ".example.com")}, p256), func(l *model.Listener) {
			l.ClientAuthentication = &model.ClientAuthentication{CAs: clients}
			l.Backends = []model.Backend{{Group: "shop:https", Weight: 1, TLS: &model.BackendTLS{Hostname: "shop.internal", CAs: servers}}}
		})
	}
	r, err := Render(gateway(prefer, model.Port{Number: 443, Listeners: []model.Listener{listener("a", one, one), listener("b", one, other)}}))
	if err != nil {
		t.Fatal(err)
	}
	bundles := map[string]string{}
	for file, content := range r.Files {
		if strings.HasPrefix(file, "ca/") {
			bundles[content] = file
		}
	}
	if len(bundles) != 2 || bundles[one] == "" || bundles[other] == "" {
		t.Fatalf("files %v, want one for each bundle", bundles)
	}
	if a, b := r.Backends[0].Groups[0].TLS.CAFile, r.Backends[1].Groups[0].TLS.CAFile; a != bundles[one] || b != bundles[other] {
		t.Errorf("backends verify by %s and %s, want %s and %s", a, b, bundles[one], bundles[other])
	}
	if n := strings.Count(r.Config, " ca-file "+bundles[one]+" "); n != 2 {
		t.Errorf("%d binds verify by %s, want both", n, bundles[one])
	}
}

func TestHAProxyAcceptsEveryConfiguration(t *testing.T) {
	check := haproxyCheck(t)
	for name, g := range cases(t) {
		t.Run(name, func(t *testing.T) {
			revision, err := Render(g)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if g.TLS.Provider || g.TLS.Vectorized {
				provider(t)
			}
			writeTree(t, dir, revision, Assign(revision, nil, someEndpoints))
			if out, err := check(dir); err != nil {
				t.Errorf("haproxy -c: %v\n%s", err, out)
			} else if strings.Contains(out, "WARNING") {
				t.Errorf("haproxy -c warns:\n%s", out)
			}
		})
	}
}

// Each shipped policy in each mode: what a bind negotiates, in one file, and
// HAProxy takes it.
func TestBindsOfEveryPolicy(t *testing.T) {
	policies, err := shipped.Policies()
	if err != nil {
		t.Fatal(err)
	}
	fallback := policies[slices.IndexFunc(policies, func(p *v1alpha1.QTLSPolicy) bool { return p.Name == "compatible-v1" })]
	var lines strings.Builder
	for _, p := range policies {
		for _, mode := range []v1alpha1.PolicyMode{v1alpha1.PolicyModePrefer, v1alpha1.PolicyModeRequire, v1alpha1.PolicyModeObserve} {
			parameters, _ := policy.Resolve(p, fallback, mode)
			accepts := policy.Accepts(p, fallback, mode)
			var certificates []model.Certificate
			for c, scheme := range map[*model.Certificate]v1alpha1.SignatureScheme{&mldsa87: "mldsa87", &mldsa65: "mldsa65", &p256: "ecdsa_secp256r1_sha256"} {
				if accepts(scheme) {
					certificates = append(certificates, *c)
				}
			}
			slices.SortFunc(certificates, func(a, b model.Certificate) int { return strings.Compare(string(b.Algorithm), string(a.Algorithm)) })
			revision, err := Render(gateway(parameters, model.Port{Number: 443, Listeners: []model.Listener{https("web", []model.Hostname{"shop.example.com"}, certificates...)}}))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&lines, "%s, %s\n", p.Name, mode)
			for line := range strings.Lines(revision.Config) {
				if strings.HasPrefix(line, "    bind ") {
					lines.WriteString(line)
				}
			}
			t.Run(p.Name+" "+string(mode), func(t *testing.T) {
				check := haproxyCheck(t)
				if parameters.Provider {
					provider(t)
				}
				dir := t.TempDir()
				writeTree(t, dir, revision, Assign(revision, nil, someEndpoints))
				if out, err := check(dir); err != nil || strings.Contains(out, "WARNING") {
					t.Errorf("haproxy -c: %v\n%s", err, out)
				}
			})
		}
	}
	compareGolden(t, "policies", []byte(lines.String()))
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; run with -update to write it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("configuration (-want +got; -update writes it anew):\n%s", diff)
	}
}

// The most, and the longest, that the API lets a policy name.
func TestTheLargestPolicyIsServed(t *testing.T) {
	const most = 32
	longest := func(names []string) []string {
		slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
		return names[:most]
	}
	var groups, schemes []string
	for _, g := range algorithms.Groups {
		groups = append(groups, string(g.Name))
	}
	for _, s := range algorithms.SignatureSchemes {
		schemes = append(schemes, string(s.Name))
	}
	policies, err := shipped.Policies()
	if err != nil {
		t.Fatal(err)
	}
	fallback := policies[slices.IndexFunc(policies, func(p *v1alpha1.QTLSPolicy) bool { return p.Name == "compatible-v1" })]
	largest := fallback.DeepCopy()
	largest.Spec.Groups, largest.Spec.SignatureSchemes = nil, nil
	for i := range most {
		largest.Spec.Groups = append(largest.Spec.Groups, v1alpha1.Group(longest(groups)[i]))
		largest.Spec.SignatureSchemes = append(largest.Spec.SignatureSchemes, v1alpha1.SignatureScheme(longest(schemes)[i]))
	}
	parameters, _ := policy.Resolve(largest, fallback, v1alpha1.PolicyModePrefer)
	revision, err := Render(gateway(parameters, model.Port{Number: 443, Listeners: []model.Listener{https("web", nil, p256)}}))
	if err != nil {
		t.Fatal(err)
	}
	check := haproxyCheck(t)
	provider(t)
	dir := t.TempDir()
	writeTree(t, dir, revision, Assign(revision, nil, someEndpoints))
	if out, err := check(dir); err != nil || strings.Contains(out, "WARNING") {
		t.Errorf("haproxy -c: %v\n%s", err, out)
	}
}

func TestHAProxyRefusesWhatIsWrong(t *testing.T) { // the control: the check can fail
	check := haproxyCheck(t)
	revision, err := Render(cases(t)["dual"])
	if err != nil {
		t.Fatal(err)
	}
	revision.Config = strings.Replace(revision.Config, "curves X25519MLKEM768", "curves X25519MLKEM999", 1)
	dir := t.TempDir()
	writeTree(t, dir, revision, Assign(revision, nil, someEndpoints))
	if out, err := check(dir); err == nil {
		t.Errorf("haproxy -c accepts a group that does not exist:\n%s", out)
	}
}

// imageOpenSSLConfig is OpenSSL's configuration as the gateway image has it: what
// the Dockerfile adds is not in the root file system of its packages.
func imageOpenSSLConfig(t *testing.T, root string) string {
	t.Helper()
	var all []byte
	for _, file := range []string{filepath.Join(root, "etc/ssl/openssl.cnf"), "../../images/gateway/pkcs11.cnf"} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, content...)
	}
	// OPENSSL_MODULES names one folder, and that may be another's.
	all = fmt.Appendf(all, "module = %s\n", filepath.Join(root, "usr/lib/x86_64-linux-gnu/ossl-modules/pkcs11.so"))
	path := filepath.Join(t.TempDir(), "openssl.cnf")
	if err := os.WriteFile(path, all, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// haproxyCheck runs `haproxy -c` of the gateway image over a folder. The image's
// root file system is found by QTLS_GATEWAY_ROOTFS, which `make` sets.
func haproxyCheck(t *testing.T) func(dir string) (string, error) {
	t.Helper()
	root := gatewayRoot(t)
	openssl := imageOpenSSLConfig(t, root)
	return func(dir string) (string, error) {
		cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
			filepath.Join(root, "usr/sbin/haproxy"), "-c", "-f", filepath.Join(dir, ConfigFile), "-f", filepath.Join(dir, BackendsFile))
		cmd.Env = append(os.Environ(), "OPENSSL_CONF="+openssl, "OPENSSL_MODULES="+modules(root))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// providerVariable names the OpenSSL provider's module, oqsprovider.so, which is
// in the images but not in the root file systems that tests use.
const providerVariable = "QTLS_PROVIDER"

// modules is the folder of OpenSSL's modules: where the provider is, if there is
// one.
func modules(root string) string {
	if module := os.Getenv(providerVariable); module != "" {
		return filepath.Dir(module)
	}
	return filepath.Join(root, "usr/lib/x86_64-linux-gnu/ossl-modules")
}

// provider is the module's path. What needs it is skipped where it is not built.
func provider(t testing.TB) string {
	t.Helper()
	module := os.Getenv(providerVariable)
	if module == "" {
		t.Skip(providerVariable + " is not set: `make test-unit` sets it to the OpenSSL provider's module")
	}
	return module
}

// openssl runs the gateway image's with the provider.
func openssl(t testing.TB, arguments ...string) {
	t.Helper()
	provider(t)
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	arguments = append(arguments, "-provider", "default", "-provider", "oqsprovider")
	cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, "usr/bin/openssl")}, arguments...)...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF="+filepath.Join(root, "etc/ssl/openssl.cnf"), "OPENSSL_MODULES="+modules(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openssl %s: %v\n%s", arguments[0], err, out)
	}
}

func gatewayRoot(t *testing.T) string {
	t.Helper()
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	if root == "" {
		if os.Getenv("QTLS_REQUIRE_ROOTFS") != "" {
			t.Fatal("QTLS_GATEWAY_ROOTFS is not set")
		}
		t.Skip("QTLS_GATEWAY_ROOTFS is not set: `make test-unit` sets it to the gateway image's root file system")
	}
	return root
}

// writeTree writes what an agent writes, with certificates made for the test.
func writeTree(t testing.TB, dir string, r dataplane.Revision, slots Slots) {
	t.Helper()
	write := func(name string, content []byte) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ConfigFile, []byte(r.Config))
	write(BackendsFile, []byte(Backends(r, slots)))
	for name, content := range r.Files {
		write(name, []byte(content))
	}
	for name, content := range ticketFiles(r) {
		write(name, content)
	}
	for _, c := range r.Certificates {
		write(CertificateFile(c.Name), chainAndKey(t, v1alpha1.KeyAlgorithm(c.Algorithm), "shop.example.com"))
	}
}

// ticketFiles are those that the agent writes.
func ticketFiles(r dataplane.Revision) map[string][]byte {
	files := map[string][]byte{}
	if r.Tickets != nil {
		ring := tickets.New(1)
		for _, f := range r.Tickets.Files {
			files[TicketFile(f.Name)] = ring.For(f.Scope).File()
		}
	}
	return files
}

func chainAndKey(t testing.TB, algorithm v1alpha1.KeyAlgorithm, hostname string) []byte {
	t.Helper()
	if a, _ := algorithms.LookupKeyAlgorithm(algorithm); a.Provider != nil {
		return providerChainAndKey(t, algorithm, hostname)
	}
	key := testcert.Key(t, algorithm)
	return append(testcert.PEM(selfSigned(t, key, hostname, false)), testcert.KeyPEM(t, key)...)
}

// providerChainAndKey is of an algorithm that Go does not have.
func providerChainAndKey(t testing.TB, algorithm v1alpha1.KeyAlgorithm, hostname string) []byte {
	t.Helper()
	key, cert := filepath.Join(t.TempDir(), "tls.key"), filepath.Join(t.TempDir(), "tls.crt")
	openssl(t, "genpkey", "-algorithm", string(algorithm), "-out", key)
	openssl(t, "req", "-x509", "-new", "-key", key, "-out", cert, "-subj", "/CN="+hostname, "-addext", "subjectAltName=DNS:"+hostname)
	var both []byte
	for _, name := range []string{cert, key} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, data...)
	}
	return both
}

func authority(t testing.TB) []byte {
	t.Helper()
	return testcert.PEM(selfSigned(t, testcert.Key(t, "ECDSA-P256"), "authority", true))
}

func selfSigned(t testing.TB, key crypto.Signer, name string, ca bool) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true}
	return testcert.Sign(t, template, template, key.Public(), key)
}

// However many members hang, the last one's turn comes before the handshake's
// time is over.
func TestAHandshakeOutlastsTheMembersThatHang(t *testing.T) {
	for _, c := range []struct {
		members int
		timeout time.Duration
		seconds int
	}{{1, 100 * time.Millisecond, 10}, {2, 4 * time.Second, 10}, {2, 4001 * time.Millisecond, 11}, {3, 5 * time.Second, 17}, {16, time.Minute, 962}} {
		h := &model.HSM{Timeout: c.timeout, Members: make([]model.HSMMember, c.members)}
		if got := handshakeSecondsWith(h); got != c.seconds {
			t.Errorf("%d members with %s each: %d s, want %d s", c.members, c.timeout, got, c.seconds)
		}
	}
}
