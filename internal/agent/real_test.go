//go:build crypto

package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

// world is a pod with a gateway to serve.
type world struct {
	*pod
	pq, classical *family
	serials       map[string]string // by Secret
	publication
	backends map[string]dataplane.Endpoint
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{pod: newPod(t), pq: newFamily(t, "ML-DSA-65"), classical: newFamily(t, "ECDSA-P256"),
		serials: map[string]string{}, backends: map[string]dataplane.Endpoint{}}
	w.rotate(pqSecret)
	w.rotate(classicalSecret)
	w.use(render(t, testGateway()), 1)
	w.route("one")
	w.publish()
	return w
}

// rotate puts a new certificate into a Secret.
func (w *world) rotate(name string) {
	w.t.Helper()
	f := w.classical
	if name == pqSecret {
		f = w.pq
	}
	s, serial := f.secret(w.t, name)
	w.serials[name] = serial
	w.api.put(s)
}

// use assigns a revision, made patient; the former stays published.
func (w *world) use(r dataplane.Revision, generation int64) dataplane.Target {
	w.t.Helper()
	return w.useAsIs(patient(w.t, r), generation)
}

// patient is a revision for a test that may be slow: what a client does not say is
// waited for for minutes. Package haproxy tests the usual times.
func patient(t testing.TB, r dataplane.Revision) dataplane.Revision {
	t.Helper()
	replace := func(text, usual, here string) string {
		t.Helper()
		if !strings.Contains(text, usual) {
			t.Fatalf("no %q in:\n%s", usual, text)
		}
		return strings.ReplaceAll(text, usual, here)
	}
	r.Config = replace(r.Config, "timeout client-hs 10s", "timeout client-hs 10m")
	r.Config = replace(r.Config, "inspect-delay 3s", "inspect-delay 10m")
	const reader = "clienthello.lua"
	r.Files = maps.Clone(r.Files)
	r.Files[reader] = replace(r.Files[reader], "local wait = 2900", "local wait = 590000")
	return r
}

// useAsIs is use with the usual times.
func (w *world) useAsIs(r dataplane.Revision, generation int64) dataplane.Target {
	w.assignment = dataplane.Assignment{Stable: dataplane.Target{Revision: r.Name(), Generation: generation}}
	w.revisions = append(w.revisions, r)
	return w.assignment.Stable
}

// route has the Service's endpoints be the servers of these names.
func (w *world) route(names ...string) {
	w.t.Helper()
	w.endpoints = dataplane.Endpoints{testGroup: {}}
	for _, n := range names {
		if _, ok := w.backends[n]; !ok {
			w.backends[n] = backend(w.t, n)
		}
		w.endpoints[testGroup] = append(w.endpoints[testGroup], w.backends[n])
	}
}

func (w *world) publish() { w.api.put(w.configMap(w.t)) }

func (w *world) clients() (pq, classical client) {
	return newClient(dualPort, w.pq), newClient(classicalPort, w.classical)
}

// served says whether both certificates are those that were issued last.
func (w *world) served(s dataplane.Status) bool {
	n := 0
	for _, c := range s.Certificates {
		if c.SerialNumber == w.serials[c.Secret] && c.Error == "" {
			n++
		}
	}
	return n == len(w.serials)
}

func (w *world) answersFrom(want ...string) {
	w.t.Helper()
	_, classical := w.clients()
	w.eventually(fmt.Sprintf("answers from %v", want), func() error {
		var got []string
		for range 10 * len(want) {
			body, _, err := classical.get("/")
			if err != nil {
				return err
			}
			if !slices.Contains(got, body) {
				got = append(got, body)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("answers come from %v", got)
		}
		return nil
	})
}

func TestTheFirstConfigurationIsServed(t *testing.T) {
	w := newWorld(t)
	started := time.Now()
	w.start()
	t.Logf("from the agent's start to ready: %s", time.Since(started).Round(time.Millisecond))
	s := w.runs(w.assignment.Stable)
	if !w.served(s) || s.Reloads != 0 || s.Rejected != nil || s.Waiting != "" {
		t.Errorf("status: %+v", s)
	}
	pq, classical := w.clients()
	for name, c := range map[string]client{pqSecret: pq, classicalSecret: classical} {
		body, serial, err := c.get("/")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if body != "one" || serial != w.serials[name] {
			t.Errorf("%s: %q with serial number %s, want %q with %s", name, body, serial, "one", w.serials[name])
		}
	}
	w.eventually("handshakes are counted", func() error {
		for sample, want := range map[string]float64{
			`qtls_handshakes_total{certificate="ML-DSA-65",group="X25519MLKEM768",listener="web",resumed="false",version="TLSv1.3"}`: 1,
			`qtls_handshakes_total{certificate="ECDSA",group="X25519MLKEM768",listener="classic",resumed="false",version="TLSv1.3"}`: 1,
			`qtls_haproxy_active_servers{listener="web"}`: 1,
			`qtls_agent_haproxy_up`:                       1,
			`qtls_agent_generation`:                       1,
		} {
			if got := w.metric(sample); got != want {
				return fmt.Errorf("%s is %v, want %v", sample, got, want)
			}
		}
		return nil
	})
	resident, anonymous := memory(w.agent.Process.Pid)
	t.Logf("memory of the agent: %.1f MiB resident, of which %.1f MiB are its own", resident, anonymous)
	if resident > 60 {
		t.Errorf("the agent takes %.1f MiB", resident)
	}
}

func TestARefusedRevisionDisturbsNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	good := w.assignment.Stable
	w.runs(good)
	pq, classical := w.clients()
	load := startTraffic(4, pq, classical)
	bad := render(t, testGateway())
	bad.Config = strings.Replace(bad.Config, "default_backend backend.web", "default_backend nowhere", 1)
	target := w.use(bad, 2)
	w.publish()
	s := w.statusIs("rejected", func(s dataplane.Status) bool { return s.Rejected != nil })
	t.Logf("HAProxy's message: %s", s.Rejected.Message)
	if s.Rejected.Target != target || !strings.Contains(s.Rejected.Message, "nowhere") || strings.Contains(s.Rejected.Message, "/run/qtls") {
		t.Errorf("rejection: %+v", s.Rejected)
	}
	if s.Running != good || s.Reloads != 0 {
		t.Errorf("status: %+v", s)
	}
	// Meanwhile what runs is kept up to date.
	w.rotate(pqSecret)
	w.statusIs("the new certificate", w.served)
	w.route("two")
	w.publish()
	w.answersFrom("two")
	load.end(t, "a refused revision")
	w.eventually("it is tried once more with the new certificate, and no more", func() error {
		if got := w.metric("qtls_agent_rejections_total"); got != 2 {
			return fmt.Errorf("tried %v times", got)
		}
		return nil
	})
	if err := w.probe("/readyz"); err != nil {
		t.Error(err)
	}
	// The next good one replaces it.
	fixed := testGateway()
	fixed.DrainTimeoutSeconds = 11
	s = w.runs(func() dataplane.Target { defer w.publish(); return w.use(render(t, fixed), 3) }())
	if s.Rejected != nil {
		t.Errorf("still says: %+v", s.Rejected)
	}
}

func TestCertificatesRotateWithoutAFailure(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	pq, classical := w.clients()
	load := startTraffic(4, pq, classical)
	var took []time.Duration
	for i := range 30 {
		name := []string{pqSecret, classicalSecret}[i%2]
		_, before, err := []client{pq, classical}[i%2].get("/")
		if err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		w.rotate(name)
		w.statusIs("the new certificate", w.served)
		took = append(took, time.Since(started))
		_, after, err := []client{pq, classical}[i%2].get("/")
		if err != nil {
			t.Fatal(err)
		}
		if before == after || after != w.serials[name] {
			t.Fatalf("rotation %d of %s: serial number %s before, %s after, %s issued", i, name, before, after, w.serials[name])
		}
	}
	load.end(t, "30 rotations")
	slices.Sort(took)
	t.Logf("from the Secret's change to the status that says it is served: median %s, longest %s", took[15].Round(time.Millisecond), took[29].Round(time.Millisecond))
	if s := w.look(); s.Reloads != 0 {
		t.Errorf("%d reloads", s.Reloads)
	}
	p, err := w.master().Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Reloads != 0 {
		t.Errorf("HAProxy counts %d reloads", p.Reloads)
	}
	// A reload reads the files: they have the last certificates too.
	if err := w.master().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, serial, err := pq.get("/"); err != nil || serial != w.serials[pqSecret] {
		t.Errorf("after a reload: serial number %s, %v", serial, err)
	}
}

func TestACertificateTooLongForTheRuntimeAPIIsReloaded(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	_, classical := w.clients()
	load := startTraffic(2, classical)
	names := []string{testHost}
	for i := range 1500 {
		names = append(names, fmt.Sprintf("a-name-that-takes-its-room-%04d.example.com", i))
	}
	certPEM, keyPEM, serial := w.classical.leaf(t, names...)
	t.Logf("a chain of %d bytes", len(certPEM))
	w.serials[classicalSecret] = serial
	w.api.put(tlsSecret(classicalSecret, certPEM, keyPEM))
	s := w.statusIs("the new certificate", w.served)
	load.end(t, "a long certificate")
	if s.Reloads != 1 {
		t.Errorf("%d reloads", s.Reloads)
	}
}

// A check reads the configuration; only a reload binds its ports, and one that
// fails makes the worker that serves let go of its sockets.
func TestAPortThatIsTakenDisturbsNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	good := w.assignment.Stable
	w.runs(good)
	taken, err := net.Listen("tcp", ":10445")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	pq, classical := w.clients()
	load := startTraffic(4, pq, classical)
	g := testGateway()
	g.Ports = append(g.Ports, g.Ports[1])
	g.Ports[2].Number = 10445
	g.Ports[2].Listeners = slices.Clone(g.Ports[2].Listeners)
	g.Ports[2].Listeners[0].Name = "more"
	target := w.use(render(t, g), 2)
	w.publish()
	s := w.statusIs("rejected", func(s dataplane.Status) bool { return s.Rejected != nil && s.Running == good })
	t.Logf("message: %s", s.Rejected.Message)
	if s.Rejected.Target != target || !strings.Contains(s.Rejected.Message, "port 10445") {
		t.Errorf("rejection: %+v", s.Rejected)
	}
	taken.Close()
	w.rotate(pqSecret) // the new certificate is a new try
	s = w.runs(target)
	load.end(t, "a port that is taken, and then is not")
	if s.Reloads != 1 || s.Rejected != nil {
		t.Errorf("status: %+v", s)
	}
	w.statusIs("the new certificate", w.served)
}

func TestAReloadThatFailsIsMadeGood(t *testing.T) {
	w := newWorld(t)
	w.start()
	good := w.assignment.Stable
	w.runs(good)
	// A socket that no look at ports finds.
	taken, err := net.Listen("unix", "@qtls.taken"+strings.Repeat("\x00", 108-len("@qtls.taken"))) // padded, as HAProxy does
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := render(t, testGateway())
	bad.Config += "\nfrontend more from tcp\n    bind abns@qtls.taken\n"
	target := w.use(bad, 2)
	w.publish()
	s := w.statusIs("rejected, and the former loaded again", func(s dataplane.Status) bool {
		return s.Rejected != nil && s.Rejected.Target == target && s.Running == good && s.Reloads == 1
	})
	t.Logf("HAProxy's message: %s", s.Rejected.Message)
	pq, classical := w.clients()
	load := startTraffic(4, pq, classical)
	time.Sleep(time.Second)
	load.end(t, "after a reload that failed")
	w.eventually("one tree is left", func() error {
		if names, err := (trees{dir: w.dir + "/run"}).names(); err != nil || len(names) != 1 {
			return fmt.Errorf("trees: %v, %w", names, err)
		}
		return nil
	})
	w.rotate(pqSecret)
	w.route("two")
	w.publish()
	w.answersFrom("two")
	if s := w.statusIs("the new certificate", w.served); s.Reloads != 1 || s.Rejected == nil {
		t.Errorf("status: %+v", s) // a renewed certificate is no reason for another try
	}
}

func TestFailedHandshakesAreCountedByReason(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	openssl := func(arguments ...string) {
		t.Helper()
		cmd := exec.Command("chroot", append([]string{w.rootfs, "openssl", "s_client", "-connect", fmt.Sprintf("127.0.0.1:%d", classicalPort)}, arguments...)...)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Fatalf("openssl s_client %v is served: %s", arguments, out)
		}
	}
	raw := func(text string) {
		t.Helper()
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", classicalPort))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, text)
		if text != "" {
			_, _ = io.ReadAll(c)
		}
	}
	for _, c := range []struct {
		reason string
		cause  func()
	}{
		{"no_common_group", func() { openssl("-servername", testHost, "-groups", "P-521") }},
		{"no_common_signature_scheme", func() { openssl("-servername", testHost, "-sigalgs", "rsa_pss_rsae_sha256") }},
		{"no_common_version", func() { openssl("-servername", testHost, "-tls1_2") }},
		{"no_common_cipher_suite", func() { openssl("-servername", testHost, "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256") }},
		{"unknown_server_name", func() { openssl("-servername", "other.example.com") }},
		{"not_tls", func() { raw("GET / HTTP/1.1\r\nHost: x\r\n\r\n") }},
		{"closed_by_client", func() { // or refused_by_client: the alert may come before the end, or not be read

			if _, _, err := newClient(classicalPort, w.pq).get("/"); err == nil { // trusts another CA
				t.Fatal("a chain of another CA is accepted")
			}
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			count := func() float64 {
				n := w.metric(fmt.Sprintf(`qtls_handshake_failures_total{listener="classic",reason=%q}`, c.reason))
				if c.reason == "closed_by_client" {
					n += w.metric(`qtls_handshake_failures_total{listener="classic",reason="refused_by_client"}`)
				}
				return n
			}
			before := count()
			c.cause()
			for deadline := time.Now().Add(patience); count() != before+1; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					var counted []string
					for line := range strings.Lines(w.metrics()) {
						if strings.HasPrefix(line, "qtls_handshake") {
							counted = append(counted, strings.TrimSpace(line))
						}
					}
					t.Fatalf("not counted; counted are %q", counted)
				}
			}
		})
	}
}

func TestEndpointsMoveWithoutAReload(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	_, classical := w.clients()
	load := startTraffic(2, classical)
	for _, names := range [][]string{{"one", "two"}, {"two"}, {"three", "two"}, {"four", "one", "three", "two"}, {"four"}} {
		w.route(names...)
		w.publish()
		w.answersFrom(names...)
	}
	load.end(t, "endpoints that move")
	if s := w.look(); s.Reloads != 0 {
		t.Errorf("%d reloads", s.Reloads)
	}
	var many []string
	for i := range 12 { // more than there are slots
		many = append(many, fmt.Sprintf("server-%02d", i))
	}
	w.route(many...)
	w.publish()
	w.statusIs("a reload", func(s dataplane.Status) bool { return s.Reloads == 1 })
	w.answersFrom(many...)
}

func TestARevisionIsSwitchedUnderLoad(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	pq, classical := w.clients()
	load := startTraffic(4, pq, classical)
	for i := range 5 {
		g := testGateway()
		g.DrainTimeoutSeconds = 20 + i
		target := w.use(render(t, g), int64(i)+2)
		w.publish()
		s := w.runs(target)
		if s.Reloads != i+1 {
			t.Errorf("%d reloads after %d revisions", s.Reloads, i+1)
		}
		time.Sleep(200 * time.Millisecond)
	}
	load.end(t, "5 revisions")
	// A new generation of the same configuration is only told.
	target := w.assignment.Stable
	target.Generation++
	w.assignment.Stable = target
	w.publish()
	if s := w.runs(target); s.Reloads != 5 {
		t.Errorf("%d reloads after a generation without a change", s.Reloads)
	}
}

func TestANewAgentTakesOver(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	w.rotate(pqSecret)
	w.statusIs("the new certificate", w.served)
	before, err := w.admin().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pq, classical := w.clients()
	load := startTraffic(2, pq, classical)
	last := w.look()
	w.kill(w.agent)
	time.Sleep(300 * time.Millisecond)
	w.startAgent()
	s := w.statusIs("taken over", func(s dataplane.Status) bool { return s.Running == w.assignment.Stable && w.served(s) })
	w.eventually("the new agent counts handshakes", func() error {
		if !strings.Contains(w.metrics(), `qtls_handshakes_total{certificate="ML-DSA-65"`) {
			return errors.New("none is counted")
		}
		return nil
	})
	if s.Sequence <= last.Sequence {
		t.Errorf("the sequence went back from %d to %d", last.Sequence, s.Sequence)
	}
	after, err := w.admin().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Reloads != 0 || after.PID != before.PID || after.Started != before.Started {
		t.Errorf("the worker was changed: %+v, then %+v; %d reloads", before, after, s.Reloads)
	}
	// What happened while no agent ran is made good.
	w.kill(w.agent)
	w.rotate(classicalSecret)
	w.route("two")
	w.publish()
	w.startAgent()
	s = w.statusIs("taken over again", func(s dataplane.Status) bool { return s.Running == w.assignment.Stable && w.served(s) })
	w.answersFrom("two")
	load.end(t, "two restarts of the agent")
	if s.Reloads != 0 {
		t.Errorf("%d reloads", s.Reloads)
	}
}

// endBeforeLoading ends the agent between making a tree current and loading it.
func (w *world) endBeforeLoading() (trees trees, next string) {
	w.t.Helper()
	w.kill(w.agent)
	trees.dir = w.dir + "/run"
	name, err := trees.current()
	if err != nil {
		w.t.Fatal(err)
	}
	next = strings.TrimSuffix(name, "-1") + "-2"
	if out, err := exec.Command("cp", "-a", trees.path(name), trees.path(next)).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("sh", "-c", fmt.Sprintf("cd %s && rm -f %s && sed -i s/%s/%s/ backends.cfg && chown %d backends.cfg", trees.path(next), adminSocket, name, next, podUser)).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	if err := trees.use(next); err != nil {
		w.t.Fatal(err)
	}
	return trees, next
}

func TestAnAgentFinishesWhatAnEarlierOneBegan(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	trees, next := w.endBeforeLoading()
	w.startAgent()
	w.statusIs("a reload", func(s dataplane.Status) bool { return s.Reloads == 1 && s.Running == w.assignment.Stable })
	if names, _ := trees.names(); !slices.Equal(names, []string{next}) {
		t.Errorf("trees: %v, want only %s", names, next)
	}
}

func TestHAProxyIsRestarted(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	w.kill(w.haproxy)
	w.statusIs("down", func(s dataplane.Status) bool { return s.Running == dataplane.Target{} && s.Waiting != "" })
	w.eventually("not ready without HAProxy", func() error { // which is told a little later than the status
		if w.probe("/readyz") == nil {
			return errors.New("ready")
		}
		return nil
	})
	w.rotate(pqSecret) // goes into the file alone
	w.startHAProxy()
	w.statusIs("up", func(s dataplane.Status) bool { return s.Running == w.assignment.Stable && w.served(s) })
	pq, _ := w.clients()
	if _, serial, err := pq.get("/"); err != nil || serial != w.serials[pqSecret] {
		t.Errorf("serial number %s, want %s; %v", serial, w.serials[pqSecret], err)
	}
}

func TestASecretThatTurnsBadIsToldAndNotServed(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	pq, classical := w.clients()
	load := startTraffic(2, pq, classical)
	served := w.serials[pqSecret]

	certPEM, _, _ := w.pq.leaf(t, testHost)
	_, otherKey, _ := w.pq.leaf(t, testHost)
	problem := func(words string) func(dataplane.Status) bool {
		return func(s dataplane.Status) bool {
			return slices.ContainsFunc(s.Certificates, func(c dataplane.CertificateStatus) bool {
				return c.Secret == pqSecret && strings.Contains(c.Error, words) && c.SerialNumber == served
			})
		}
	}
	w.api.put(tlsSecret(pqSecret, certPEM, otherKey))
	w.statusIs("a key of another certificate", problem("does not belong"))
	w.api.put(tlsSecret(pqSecret, nil, otherKey))
	w.statusIs("no certificate", problem("has no tls.crt"))
	ecCert, ecKey, _ := w.classical.leaf(t, testHost)
	w.api.put(tlsSecret(pqSecret, ecCert, ecKey))
	w.statusIs("another algorithm", problem("expects ML-DSA-65"))
	w.api.delete("secrets", pqSecret)
	w.statusIs("no Secret", problem("does not exist"))
	if _, serial, err := pq.get("/"); err != nil || serial != served {
		t.Errorf("serial number %s, want the former %s; %v", serial, served, err)
	}
	// A new revision takes the former certificate along.
	g := testGateway()
	g.DrainTimeoutSeconds = 12
	target := w.use(render(t, g), 2)
	w.publish()
	w.runs(target)
	w.statusIs("no Secret, still", problem("does not exist"))
	w.rotate(pqSecret)
	w.statusIs("the new certificate", w.served)
	load.end(t, "a Secret that turns bad")
}

func TestTheFirstConfigurationWaitsForWhatItNeeds(t *testing.T) {
	w := newWorld(t)
	w.api.forbid("configmaps", "web-dataplane", true)
	w.api.forbid("secrets", classicalSecret, true)
	w.api.delete("secrets", pqSecret)
	w.startAgent()
	w.statusIs("the ConfigMap", func(s dataplane.Status) bool {
		return strings.Contains(s.Waiting, "web-dataplane") && strings.Contains(s.Waiting, "Role")
	})
	if w.probe("/startupz") == nil {
		t.Error("started without a configuration")
	}
	w.api.forbid("configmaps", "web-dataplane", false)
	w.statusIs("the Secrets", func(s dataplane.Status) bool {
		return len(s.Certificates) == 2 && strings.Contains(s.Certificates[0].Error, "Role") && strings.Contains(s.Certificates[1].Error, "does not exist")
	})
	w.rotate(pqSecret)
	w.api.forbid("secrets", classicalSecret, false)
	w.eventually("/startupz", func() error { return w.probe("/startupz") })
	w.startHAProxy()
	w.runs(w.assignment.Stable)
}

func TestTheAPIServerGoesAway(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	w.api.CloseClientConnections()
	w.api.Listener.Close()
	s := w.statusIs("not reached", func(s dataplane.Status) bool { return strings.Contains(s.Waiting, "API server") })
	t.Logf("status: %s", s.Waiting)
	if s.Running != w.assignment.Stable || !w.served(s) {
		t.Errorf("status: %+v", s)
	}
	if err := w.probe("/readyz"); err != nil {
		t.Error(err)
	}
	pq, _ := w.clients()
	if _, _, err := pq.get("/"); err != nil {
		t.Error(err)
	}
}

// drain starts the container's hook; finish waits for its end, and checks that the
// kubelet would report no failure.
func (w *world) drain(delay time.Duration) (finish func() (said string)) {
	w.t.Helper()
	drain := w.exec(w.haproxy, "/run/bin/qtls-agent", "drain", "--delay", delay.String())
	var out strings.Builder
	drain.Stdout, drain.Stderr = &out, &out
	if err := drain.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() string {
		w.t.Helper()
		if err := drain.Wait(); err != nil {
			w.t.Errorf("drain: %v: %s", err, out.String())
		}
		return out.String()
	}
}

// untilItTells tries, each time from the beginning, until something could be told: on a
// busy machine a client may be later than what is tested allows it. What a try can tell
// is the test's result.
func untilItTells(t *testing.T, try func(t *testing.T) (told bool)) {
	t.Helper()
	const most = 10
	for n := 1; n <= most; n++ {
		told := false
		t.Run(fmt.Sprintf("try %d", n), func(t *testing.T) { told = try(t) })
		if told || t.Failed() {
			return
		}
		t.Logf("try %d of %d tells nothing: the machine was too slow", n, most)
	}
	t.Errorf("none of %d tries tells anything", most)
}

// open says whether a port of the pod takes connections.
func open(port int) bool {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// A connection that a port has taken is served also when its ClientHello comes
// after the port has closed.
func TestDrainServesWhatAPortHasTaken(t *testing.T) {
	drainServesWhatAPortHasTaken(t, func(*world) {})
}

// So it is where HAProxy does not run what it would start from.
func TestDrainFindsTheWorkerOfAnEarlierConfiguration(t *testing.T) {
	drainServesWhatAPortHasTaken(t, func(w *world) { w.endBeforeLoading() })
}

func drainServesWhatAPortHasTaken(t *testing.T, before func(*world)) {
	t.Helper()
	untilItTells(t, func(t *testing.T) bool {
		w := newWorld(t)
		g := testGateway()
		g.DrainTimeoutSeconds = 600
		target := w.useAsIs(render(t, g), 2) // the usual times: a drain waits for as long as a hello has
		w.publish()
		w.start()
		w.runs(target)
		before(w)
		return w.drainServesWhatItsPortHasTaken()
	})
}

// speaker is a connection that knows how long after it was dialled it spoke first.
type speaker struct {
	net.Conn
	dialled time.Time
	spoke   time.Duration
}

func (s *speaker) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if s.spoke == 0 {
		s.spoke = time.Since(s.dialled)
	}
	return n, err
}

func (w *world) drainServesWhatItsPortHasTaken() (told bool) {
	t := w.t
	t.Helper()
	// A hello has 2.9 seconds. If HAProxy itself is late, it serves the other certificate.
	const soon = 2500 * time.Millisecond
	either := newClient(dualPort, w.pq)
	either.config.RootCAs.AddCert(w.classical.cert)
	address := fmt.Sprintf("127.0.0.1:%d", dualPort)
	var taken []*speaker
	for range 40 {
		dialled := time.Now()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		taken = append(taken, &speaker{Conn: conn, dialled: dialled})
	}
	if _, _, err := either.get("/"); err != nil { // those before it have left the kernel's queue, too
		t.Fatal(err)
	}
	finish := w.drain(0)
	w.portCloses(dualPort)
	failed, chosen := make([]error, len(taken)), make([]bool, len(taken))
	var all sync.WaitGroup
	for i, conn := range taken {
		all.Go(func() {
			time.Sleep(time.Duration(i) * 25 * time.Millisecond) // a drain looks many times meanwhile
			client := tls.Client(conn, either.config)
			if failed[i] = client.HandshakeContext(t.Context()); failed[i] == nil {
				chosen[i] = client.ConnectionState().PeerCertificates[0].SerialNumber.Text(16) == w.serials[pqSecret]
			}
			conn.Close()
		})
	}
	all.Wait()
	said := finish()
	inTime, served, postQuantum := 0, 0, 0
	for i, conn := range taken {
		if conn.spoke >= soon {
			continue
		}
		inTime++
		if chosen[i] {
			postQuantum++
		}
		if failed[i] == nil {
			served++
			continue
		}
		if strings.Contains(said, "wait for longer than") { // HAProxy stood still for as long as a drain waits for it
			t.Logf("connection %d: %v; the drain gave up: %s", i, failed[i], said)
			return false
		}
		t.Errorf("connection %d, whose hello came after %s: %v", i, conn.spoke, failed[i])
	}
	t.Logf("of %d connections the hellos of %d came in time; %d of these were served, %d with the certificate of their choice", len(taken), inTime, served, postQuantum)
	return postQuantum > 0
}

func (w *world) portCloses(port int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("port %d is closed", port), func() error {
		if open(port) {
			return errors.New("it takes connections")
		}
		return nil
	})
}

// While nodes still send a pod that leaves new clients, it serves them what is
// published. What is published later would open its ports again.
func TestDrainTakesUpConfigurationsWhileItsPortsAreOpen(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	_, classical := w.clients()
	const delay = 30 * time.Second // more than a new configuration takes on a busy machine
	started := time.Now()
	finish := w.drain(delay)
	time.Sleep(time.Second)
	publish := func(generation int64) dataplane.Target {
		g := testGateway()
		g.DrainTimeoutSeconds = 30 + int(generation)
		defer w.publish()
		return w.use(render(t, g), generation)
	}
	w.runs(publish(2))
	if !open(classicalPort) {
		t.Fatal("the port is closed already")
	}
	underWay := make(chan error, 1)
	go func() {
		// Ports close after the drain's delay and extra time at the latest.
		lasts := time.Until(started.Add(delay + haproxy.DrainExtra + 8*time.Second))
		_, _, err := classical.get("/?sleep=" + lasts.String())
		underWay <- err
	}()
	time.Sleep(time.Until(started.Add(delay + 2*time.Second))) // an earlier look would be a connection that comes
	w.portCloses(classicalPort)
	publish(3)
	for {
		select {
		case err := <-underWay:
			if err != nil {
				t.Errorf("the request under way: %v", err)
			}
			finish()
			return
		case <-time.After(50 * time.Millisecond):
			if open(classicalPort) {
				t.Fatal("the port is open again")
			}
		}
	}
}

// A node that learns late that the pod leaves sends it connections for longer.
func TestDrainTakesConnectionsWhileTheyCome(t *testing.T) {
	untilItTells(t, func(t *testing.T) bool {
		w := newWorld(t)
		w.start()
		w.runs(w.assignment.Stable)
		_, classical := w.clients()
		const delay, late, clients = time.Second, 3 * time.Second, 8
		started := time.Now()
		finish := w.drain(delay)
		var (
			mu     sync.Mutex
			failed error
			served int
			after  time.Duration // of the failure
			// quiet is for how long no connection may have come, between when the last of
			// those before it was begun and when the next was served, or failed.
			quiet time.Duration
			last  = started
			all   sync.WaitGroup
		)
		once := func() (more bool) {
			began := time.Now()
			_, _, err := classical.get("/")
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				return false
			}
			quiet = max(quiet, time.Since(last))
			if err != nil {
				failed, after = err, time.Since(started)
				return false
			}
			served++
			if began.After(last) {
				last = began
			}
			return true
		}
		for range clients {
			all.Go(func() {
				for time.Since(started) < delay+late && once() {
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
		all.Wait()
		finish()
		t.Logf("%d connections were served; none came for %s at most", served, quiet)
		refused := errors.Is(failed, syscall.ECONNREFUSED) || errors.Is(failed, syscall.ECONNRESET)
		if refused && quiet >= haproxy.DrainQuiet { // the port may have closed rightly
			t.Logf("refused %s after the drain began: %v", after, failed)
			return false
		}
		if failed != nil {
			t.Errorf("refused %s after the drain began, with %d before it: %v", after, served, failed)
		}
		return true
	})
}

func TestDrainFinishesWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	g := testGateway()
	g.DrainTimeoutSeconds = 120
	w.use(render(t, g), 2)
	w.publish()
	w.start()
	w.runs(w.assignment.Stable)
	_, classical := w.clients()
	underWay := make(chan error, 1)
	go func() {
		body, _, err := classical.get("/?sleep=20s")
		if err == nil && body != "one" {
			err = fmt.Errorf("answer %q", body)
		}
		underWay <- err
	}()
	w.eventually("the request is under way", func() error {
		if asleep.Load() == 0 {
			return errors.New("no backend has it")
		}
		return nil
	})
	const delay = 5 * time.Second
	started := time.Now()
	finish := w.drain(delay)
	for time.Since(started) < 800*time.Millisecond { // the delay: new connections are taken
		_, _, err := classical.get("/")
		if took := time.Since(started); err != nil && took < delay { // a busy machine may take longer
			t.Fatalf("refused %s after the drain began: %v", took, err)
		}
	}
	if err := <-underWay; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	if took := time.Since(started); took < delay {
		t.Errorf("the request under way ended after %s: it was not under way", took)
	}
	finish()
	t.Logf("drained after %s", time.Since(started).Round(time.Millisecond))
	ended := make(chan error, 1)
	go func() { ended <- w.haproxy.Wait() }()
	select {
	case err := <-ended:
		t.Logf("HAProxy ended: %v", err)
	case <-time.After(patience):
		t.Error("HAProxy goes on")
	}
	w.statusIs("down", func(s dataplane.Status) bool { return s.Running == dataplane.Target{} })
}
