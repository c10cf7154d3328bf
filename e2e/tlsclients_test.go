//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/internal/keypair"
)

// The TLS clients live in two pods that all tests share, each test with a folder of its own.
const (
	clientsNamespace = "e2e-clients"
	trixie           = "trixie"   // OpenSSL 3.5
	bookworm         = "bookworm" // OpenSSL 3.0
)

func startClients(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clientsNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := cluster.Create(ctx, ns); err != nil {
		return err
	}
	for _, debian := range []string{trixie, bookworm} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: clientsNamespace, Name: debian},
			Spec: corev1.PodSpec{
				SecurityContext:               restrictedPod(),
				TerminationGracePeriodSeconds: ptr.To[int64](0),
				Volumes:                       []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
				Containers: []corev1.Container{{
					Name: "client", Image: registry + "qtls-client:" + debian, Command: []string{"sleep", "infinity"},
					SecurityContext: restrictedContainer(), VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
				}},
			},
		}
		if err := cluster.Create(ctx, pod); err != nil {
			return err
		}
		state := poll(ctx, func(ctx context.Context) (bool, string) {
			if ok, state := get(ctx, pod); !ok {
				return false, state
			}
			return isReady(pod), fmt.Sprintf("pod %s is %s", debian, pod.Status.Phase)
		})
		if state != "" {
			return fmt.Errorf("%s", state)
		}
	}
	return nil
}

func stopClients() error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clientsNamespace}}
	return client.IgnoreNotFound(cluster.Delete(context.Background(), ns))
}

// shell runs a script in a client's pod.
func (n namespace) shell(pod, script string) ran {
	n.Helper()
	return n.runIn(pod, "bash", "-c", script)
}

func (n namespace) runIn(pod string, command ...string) ran {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), forReady)
	defer cancel()
	r, err := execIn(ctx, clientsNamespace, pod, "client", nil, command...)
	if err != nil {
		// The way into the pod broke, not the command: that is not what is tested.
		n.Logf("%s in pod %s: %v; once more", strings.Join(command, " "), pod, err)
		r, err = execIn(ctx, clientsNamespace, pod, "client", nil, command...)
	}
	if err != nil {
		n.Fatalf("%s in pod %s: %v", strings.Join(command, " "), pod, err)
	}
	return r
}

// give writes a file into the test's folder in both clients' pods and returns its path.
func (n namespace) give(name string, content []byte) string {
	n.Helper()
	path := fmt.Sprintf("/tmp/%s/%s", n.name, name)
	for _, pod := range []string{trixie, bookworm} {
		r, err := execIn(n.Context(), clientsNamespace, pod, "client", bytes.NewReader(content), "bash", "-c", fmt.Sprintf("mkdir -p /tmp/%s && cat > %s", n.name, path))
		if err != nil || r.code != 0 {
			n.Fatalf("write %s in pod %s: %v %s", path, pod, err, r.stderr)
		}
	}
	return path
}

// untilListening is a loop of the shell that ends when somebody listens at a port of 127.0.0.1.
func untilListening(port int) string {
	return fmt.Sprintf("until grep -q '0100007F:%04X 00000000:0000 0A' /proc/net/tcp; do sleep 0.05; done", port)
}

// request is a connection that a client is to make, in the words of OpenSSL. Empty fields leave the client's default.
type request struct {
	address, name, ca string
	groups            string // colon separated, OpenSSL's names
	version           string // 1.1, 1.2 or 1.3
	suites            string // of TLS 1.3
	ciphers           string // of TLS 1.2
	sigalgs           string
	cert, key         string // files
	host, path        string
	headers           []string
	patience          time.Duration // of a load; a minute when it is 0
}

// answer is what became of it.
type answer struct {
	Served                 bool
	Status                 int
	Version, Suite, Group  string
	Algorithm, Serial, Pod string
	Reason                 string // why it was not served
	HelloRetryRequest      bool
	Headers                map[string][]string // that reached the backend
	Backend                backendTLS
}

type backendTLS struct{ Version, CipherSuite, Group, ServerName string }

func (a answer) String() string {
	if !a.Served {
		return "refused: " + a.Reason
	}
	return fmt.Sprintf("served: %s %s %s %s", a.Version, a.Suite, a.Group, a.Algorithm)
}

// tlsClient is one implementation of TLS.
type tlsClient struct {
	name string
	send func(namespace, request) answer
}

var (
	openssl30  = tlsClient{"OpenSSL 3.0", func(n namespace, r request) answer { return n.openssl(bookworm, r) }}
	openssl35  = tlsClient{"OpenSSL 3.5", func(n namespace, r request) answer { return n.openssl(trixie, r) }}
	curl30     = tlsClient{"curl on OpenSSL 3.0", func(n namespace, r request) answer { return n.curl(bookworm, r) }}
	curl35     = tlsClient{"curl on OpenSSL 3.5", func(n namespace, r request) answer { return n.curl(trixie, r) }}
	go126      = tlsClient{"Go 1.26", func(n namespace, r request) answer { return n.probe("1.26", r) }}
	go127      = tlsClient{"Go 1.27", func(n namespace, r request) answer { return n.probe("1.27", r) }}
	allClients = []tlsClient{openssl30, openssl35, curl30, curl35, go126, go127}
)

// echoStart is how the echo backend's answer begins, amid all that openssl prints.
var echoStart = regexp.MustCompile(`\{\s*"pod"`)

// body reads what the echo backend answered.
func (a *answer) body(text string) {
	var echo struct {
		Pod     string
		Headers map[string][]string
		TLS     backendTLS
	}
	if at := echoStart.FindStringIndex(text); at != nil && json.NewDecoder(strings.NewReader(text[at[0]:])).Decode(&echo) == nil {
		a.Pod, a.Headers, a.Backend = echo.Pod, echo.Headers, echo.TLS
	}
}

// leaf reads the certificate that the client printed.
func (a *answer) leaf(text string) {
	cert := firstCertificate(text)
	if cert == nil {
		return
	}
	a.Serial = cert.SerialNumber.Text(16)
	if algorithm, err := keypair.AlgorithmOf(cert.PublicKey); err == nil {
		a.Algorithm = string(algorithm)
	}
}

var (
	opensslStatus  = regexp.MustCompile(`HTTP/1\.[01] ([0-9]{3})`) // a session ticket's print-out may stand before it in the line
	opensslSuite   = regexp.MustCompile(`(?:New|Reused), (TLSv1\.[0-9]), Cipher is (\S+)`)
	opensslGroup   = regexp.MustCompile(`(?:Negotiated TLS1\.3 group: |(?:Server|Peer) Temp Key: )([^,\s]+)`)
	opensslECGroup = regexp.MustCompile(`(?:Server|Peer) Temp Key: ECDH, ([^,\s]+)`)
	opensslError   = regexp.MustCompile(`(?m)^.*:error:[0-9A-F]+:[^:]*:[^:]*:([^:]*):`)
	opensslVerify  = regexp.MustCompile(`(?m)^verify error:(.*)$`)
)

// timedOut is the exit code of timeout(1) when it had to end the command.
const timedOut = 124

// sClient runs OpenSSL's client until the server ends the connection; before is a command that runs beside it.
func (n namespace) sClient(pod, request, before string, args ...string) ran {
	n.Helper()
	// The request comes from a file: what is typed into the container may be late, or lost when much goes on.
	script := fmt.Sprintf(`%s
timeout 20 openssl s_client -ign_eof "$@" < <(printf %%s '%s')`, before, strings.ReplaceAll(request, "'", `'\''`))
	command := append([]string{"bash", "-c", script, "bash"}, args...)
	for try := 1; ; try++ {
		out := n.runIn(pod, command...)
		if try == 5 || out.code != timedOut || opensslStatus.MatchString(out.stdout) || !opensslSuite.MatchString(out.stdout) {
			return out
		}
		// Now and then s_client never reads its input after a handshake: -msg shows the session tickets and no request
		// that follows them. A gateway that does not answer fails the next time, too.
		n.Logf("%s: s_client sent no request in try %d: %s", pod, try, strings.Join(args, " "))
	}
}

func (n namespace) openssl(pod string, r request) answer {
	n.Helper()
	args := []string{"-connect", r.address, "-servername", r.name, "-verify_hostname", r.name, "-verify_return_error", "-CAfile", r.ca}
	option := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	option("-groups", r.groups)
	option("-ciphersuites", r.suites)
	option("-cipher", r.ciphers)
	option("-sigalgs", r.sigalgs)
	option("-cert", r.cert)
	option("-key", r.key)
	if r.version != "" {
		args = append(args, "-tls"+strings.ReplaceAll(r.version, ".", "_"))
	}
	lines := append([]string{"GET " + r.target() + " HTTP/1.1", "Host: " + r.authority(), "Connection: close"}, r.headers...)
	out := n.sClient(pod, strings.Join(append(lines, "", ""), "\r\n"), "", args...)
	all := out.stdout + out.stderr
	var a answer
	if m := opensslSuite.FindStringSubmatch(all); m != nil {
		a.Version, a.Suite = m[1], m[2]
	}
	if m := opensslECGroup.FindStringSubmatch(all); m != nil {
		a.Group = m[1]
	} else if m := opensslGroup.FindStringSubmatch(all); m != nil {
		a.Group = m[1]
	}
	a.leaf(out.stdout)
	a.body(out.stdout)
	if m := opensslStatus.FindStringSubmatch(out.stdout); m != nil {
		a.Status, _ = strconv.Atoi(m[1]) // three digits
	}
	a.Served = a.Status == 200 && strings.Contains(all, "Verify return code: 0 (ok)") && strings.Contains(all, "Verified peername: ")
	if !a.Served {
		a.Reason = fmt.Sprintf("exit code %d, HTTP status %d, the last of its output is %q", out.code, a.Status, all[max(0, len(all)-300):])
		for _, pattern := range []*regexp.Regexp{opensslError, opensslVerify} {
			if m := pattern.FindStringSubmatch(all); m != nil {
				a.Reason = strings.TrimSpace(m[1])
			}
		}
	}
	return a
}

var curlConnection = regexp.MustCompile(`SSL connection using (TLSv1\.[0-9]) / (\S+)(?: / (\S+))?`)

func (n namespace) curl(pod string, r request) answer {
	n.Helper()
	host, port, err := net.SplitHostPort(r.address)
	if err != nil {
		n.Fatal(err)
	}
	args := []string{"curl", "-sS", "-v", "--http1.1", "--max-time", "60", "--cacert", r.ca, "--resolve", r.name + ":" + port + ":" + host, "-w", `\n%{certs}`}
	option := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	option("--curves", r.groups)
	option("--tls13-ciphers", r.suites)
	option("--ciphers", r.ciphers)
	option("--cert", r.cert)
	option("--key", r.key)
	if r.version != "" {
		args = append(args, "--tlsv"+r.version, "--tls-max", r.version)
	}
	if r.host != "" {
		args = append(args, "-H", "Host: "+r.host)
	}
	for _, h := range r.headers {
		args = append(args, "-H", h)
	}
	out := n.runIn(pod, append(args, fmt.Sprintf("https://%s:%s%s", r.name, port, r.target()))...)
	var a answer
	if m := curlConnection.FindStringSubmatch(out.stderr); m != nil {
		a.Version, a.Suite, a.Group = m[1], m[2], m[3]
	}
	a.body(out.stdout)
	if i := strings.Index(out.stdout, "-----BEGIN"); i >= 0 {
		a.leaf(out.stdout[i:])
	}
	if m := regexp.MustCompile(`< HTTP/[0-9.]+ ([0-9]{3})`).FindStringSubmatch(out.stderr); m != nil {
		a.Status, _ = strconv.Atoi(m[1]) // three digits
	}
	a.Served = out.code == 0 && a.Status == 200
	if m := regexp.MustCompile(`(?m)^curl: (.*)$`).FindStringSubmatch(out.stderr); m != nil {
		a.Reason = m[1]
	} else if !a.Served {
		a.Reason = fmt.Sprintf("exit code %d, HTTP status %d", out.code, a.Status)
	}
	return a
}

func (r request) target() string {
	if r.path == "" {
		return "/"
	}
	return r.path
}

func (r request) authority() string {
	if r.host == "" {
		return r.name
	}
	return r.host
}

// probed is what the probe prints of one connection (e2e/probe).
type probed struct {
	OK                   bool
	Class, Error, Client string
	Version, CipherSuite string
	Group                string
	HelloRetryRequest    bool
	Certificate          *struct{ Algorithm, SerialNumber, Issuer string }
	Chain, Status        int
	Answer               json.RawMessage
	Pod                  string
	HandshakeMs, TotalMs float64
	Closed               *struct {
		AfterMs   float64
		Received  string
		StillOpen bool
	}
	Offered *offer
}

// offer is what a ClientHello says.
type offer struct {
	Versions, Groups, KeyShares, SignatureAlgorithms, SignatureAlgorithmsCert []string
	Bytes                                                                     int
}

// runProbe runs the probe of a release of Go with arguments of its own.
func (n namespace) runProbe(release string, r request, more ...string) probed {
	n.Helper()
	args := []string{"qtls-probe-go" + release, "-timeout", r.patienceOrMinute().String(), "-ca", r.ca, "-sni", r.name}
	option := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	option("-groups", strings.ReplaceAll(r.groups, ":", ","))
	option("-versions", r.version)
	option("-cert", r.cert)
	option("-key", r.key)
	option("-host", r.host)
	for _, h := range r.headers {
		args = append(args, "-header", h)
	}
	out := n.runIn(trixie, append(append(args, more...), r.address)...)
	var p probed
	if err := json.Unmarshal([]byte(out.stdout), &p); err != nil {
		n.Fatalf("%s: %v: %s%s", strings.Join(args, " "), err, out.stdout, out.stderr)
	}
	return p
}

func (n namespace) probe(release string, r request) answer {
	n.Helper()
	p := n.runProbe(release, r, "-http", r.target())
	a := answer{
		Served: p.OK, Status: p.Status, Version: strings.ReplaceAll(p.Version, "TLS ", "TLSv"), Suite: p.CipherSuite, Group: p.Group,
		Pod: p.Pod, Reason: p.Error, HelloRetryRequest: p.HelloRetryRequest,
	}
	if c := p.Certificate; c != nil {
		a.Algorithm, a.Serial = c.Algorithm, c.SerialNumber
	}
	a.body(string(p.Answer))
	return a
}

// offerOf says what a client's ClientHello offers, by letting it connect to the probe.
func (n namespace) offerOf(pod, command string, port int) offer {
	n.Helper()
	out := n.shell(pod, fmt.Sprintf("(%s; %s) >/dev/null 2>&1 & qtls-probe-go1.27 -timeout 1m -observe 127.0.0.1:%d; wait", untilListening(port), command, port))
	var o offer
	if err := json.Unmarshal([]byte(out.stdout), &o); err != nil {
		n.Fatalf("what %q offers: %v: %s%s", command, err, out.stdout, out.stderr)
	}
	return o
}

// mustServe fails the test unless the client is served, and returns the answer.
func (n namespace) mustServe(c tlsClient, r request) answer {
	n.Helper()
	a := c.send(n, r)
	if !a.Served {
		n.Errorf("%s to %s (%s) was not served: %s", c.name, r.address, r.name, a.Reason)
	}
	return a
}

// mustRefuse fails the test unless the client is refused in the course of TLS, and returns the answer.
func (n namespace) mustRefuse(c tlsClient, r request) answer {
	n.Helper()
	a := c.send(n, r)
	if a.Served || a.Status != 0 {
		n.Errorf("%s to %s (%s) was not refused: %s, HTTP status %d", c.name, r.address, r.name, a, a.Status)
	}
	return a
}

// waitServed waits until a client is served: a Service's address reaches every node a moment after it is given.
func (n namespace) waitServed(c tlsClient, r request) answer {
	n.Helper()
	var a answer
	eventually(n.T, forChange, fmt.Sprintf("%s is served by %s", c.name, r.address), func(context.Context) (bool, string) {
		a = c.send(n, r)
		return a.Served, a.String()
	})
	return a
}
