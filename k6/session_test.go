package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/session"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/haproxytest"
)

// running is `qtls-k6 session` while it runs.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Reader
	stderr bytes.Buffer
}

// startSession with its console as a pipe.
func startSession(t *testing.T, environment []string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.Command("/proc/self/exe", append([]string{"session"}, args...)...)}
	r.cmd.Env = append(os.Environ(), append(environment, "QTLS_TEST_IS_K6=1")...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.Stderr = &r.stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(haproxytest.Patience, func() { _ = r.cmd.Process.Kill() })
	t.Cleanup(func() {
		guard.Stop()
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	return r
}

// line that is printed next.
func (r *running) line() string {
	r.t.Helper()
	line, err := r.lines.ReadString('\n')
	if err != nil {
		r.t.Fatalf("the session ended: %v\n%s", err, r.stderr.String())
	}
	return strings.TrimSpace(line)
}

// end it, and return what it prints yet.
func (r *running) end() string {
	r.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	rest, err := io.ReadAll(r.lines)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil {
		r.t.Fatalf("it ended with %v\n%s", err, r.stderr.String())
	}
	return string(rest)
}

func summaries(t *testing.T, file string) []session.Summary {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []session.Summary
	for line := range strings.Lines(string(content)) {
		var s session.Summary
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, s)
	}
	return all
}

func TestASessionSamplesAGateway(t *testing.T) {
	t.Parallel() // it waits, mostly
	c := haproxytest.NewCertificate(t, "ml-dsa-65")
	server := haproxytest.Start(t, c, "curves X25519MLKEM768")
	file := filepath.Join(t.TempDir(), "sessions")
	s := startSession(t, []string{"QTLS_SESSION_CA=" + c.PEM}, "--host=127.0.0.1", "--port="+strconv.Itoa(server.Port), "--sni=server.example",
		"--groups=X25519MLKEM768", "--signature-algorithms=mldsa65", "--timeout=1m", "--interval=20ms", "--every=500ms", "--file="+file, "--metrics=127.0.0.1:0")
	url, found := strings.CutPrefix(s.line(), "metrics: ")
	if !found {
		t.Fatalf("it does not say where metrics are: %q", url)
	}
	for range 2 {
		if line := s.line(); !strings.Contains(line, "127.0.0.1:"+strconv.Itoa(server.Port)+" (server.example): ") {
			t.Errorf("console: %q", line)
		}
	}
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"qtls_session_samples_total{", `class="Timeout"`, "qtls_session_missed_total{", `statistic="p99"`, `of="server"`, "qtls_session_end_timestamp_seconds{"} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("metrics have no %s:\n%s", want, metrics)
		}
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(metrics)) {
		if at := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") {
			if values[line[:at]], err = strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	}
	rest := s.end()
	all := summaries(t, file)
	target := `target="127.0.0.1:` + strconv.Itoa(server.Port) + ` (server.example)"}`
	last := slices.IndexFunc(all, func(one session.Summary) bool {
		return float64(one.End.UnixMilli())/1000 == values["qtls_session_end_timestamp_seconds{"+target]
	})
	if last < 0 {
		t.Fatalf("metrics are of none of the summaries %v:\n%s", all, metrics)
	}
	for name, want := range map[string]float64{
		`latency_seconds{statistic="min",`: all[last].Min.Seconds(), `latency_seconds{statistic="p50",`: all[last].P50.Seconds(),
		`latency_seconds{statistic="p99",`: all[last].P99.Seconds(), `latency_seconds{statistic="max",`: all[last].Max.Seconds(),
		`time_share{of="server",`: all[last].ServerShare, `time_share{of="network",`: all[last].NetworkShare, `failures_total{class="Timeout",`: 0,
	} {
		if got, there := values["qtls_session_"+name+target]; !there || got != want {
			t.Errorf("%s%s is %v, want %v", name, target, got, want)
		}
	}
	var before, ever float64 // samples up to that summary, and to the end
	for i, one := range all {
		if ever += float64(one.Samples); i == last {
			before = ever
		}
	}
	if got := values["qtls_session_samples_total{"+target]; got < before || got > ever {
		t.Errorf("%v samples, want %v to %v", got, before, ever)
	}
	// The third and last is of what came after the second, if anything did.
	if len(all) < 2 || len(all) == 2 && rest != "" || len(all) > 2 && !strings.HasSuffix(rest, all[len(all)-1].String()+"\n") {
		t.Errorf("%d summaries; the last lines of the console are %q", len(all), rest)
	}
	var samples int64
	for i, one := range all {
		samples += one.Samples
		if i > 0 && !one.Start.Equal(all[i-1].End) {
			t.Errorf("session %d begins at %v, and the one before ended at %v", i, one.Start, all[i-1].End)
		}
		if one.Failed() > 0 {
			t.Errorf("failures: %v", one.Failures)
		}
		if one.Samples > 0 && (one.Min <= 0 || one.Min > one.P50 || one.P50 > one.P99 || one.P99 > one.Max+time.Microsecond || one.ServerShare <= 0 || one.ServerShare+one.NetworkShare > 1) {
			t.Errorf("summary %+v", one)
		}
	}
	if served := server.Counter(t, "req_tot"); samples != int64(served) {
		t.Errorf("%d samples, and HAProxy had %d requests", samples, served)
	}
}

func TestASessionGoesOnWithoutItsPeer(t *testing.T) {
	t.Parallel() // it waits, mostly
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "")
	// What stands before the server refuses connections at first: it closes them.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	back := make(chan struct{})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case <-back:
				go relay(conn, server.Port)
			default:
				conn.Close()
			}
		}
	}()
	file := filepath.Join(t.TempDir(), "sessions")
	s := startSession(t, nil, "--host=127.0.0.1", "--port="+strconv.Itoa(l.Addr().(*net.TCPAddr).Port), "--sni=server.example", "--ca="+c.File,
		"--timeout=1m", "--interval=10ms", "--every=200ms", "--path=", "--file="+file)
	line := s.line()
	for !strings.Contains(line, "failed") {
		line = s.line()
	}
	if !regexp.MustCompile(`, Reset failed \d+(, \d+ missed)?; Reset: ".+"$`).MatchString(line) {
		t.Errorf("the line does not say what one of the failures said: %s", line)
	}
	close(back)
	for !strings.Contains(s.line(), "p50") {
	}
	s.end()
	if content, err := os.ReadFile(file); err != nil || !bytes.Contains(content, []byte(`"messages":{"Reset":"`)) {
		t.Errorf("the file does not either, %v:\n%s", err, content)
	}
	failures := map[shard.Failure]int64{}
	for _, one := range summaries(t, file) {
		for class, n := range one.Failures {
			failures[class] += n
		}
	}
	if len(failures) != 1 || failures[shard.Reset] == 0 {
		t.Errorf("failures: %v", failures)
	}
}

// relay a connection to a port of this machine.
func relay(conn net.Conn, port int) {
	defer conn.Close()
	to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, conn); to.Close() }()
	_, _ = io.Copy(conn, to)
}

func TestASessionOfSomeTimeEndsByItself(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := startServer(t)
	out, log, err := program(t, nil, "session", "--host=127.0.0.1", "--port="+strconv.Itoa(s.port), "--sni=server.example", "--ca="+s.ca,
		"--path=/missing", "--status=404", "--resumption", "--timeout=1m", "--interval=50ms", "--duration=300ms")
	if err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "p99") || strings.Contains(out, "failed") {
		t.Errorf("%v: %q\n%s", err, out, log)
	}
}

// Its end and a summary come at one time, in either order.
func TestASessionEndsWithoutASummaryOfNothing(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := startServer(t)
	for range 5 {
		out, log, err := program(t, nil, "session", "--host=127.0.0.1", "--port="+strconv.Itoa(s.port), "--sni=server.example", "--ca="+s.ca,
			"--timeout=1m", "--interval=1m", "--every=1s", "--duration=1s")
		if err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "p99") {
			t.Errorf("%v: %q\n%s", err, out, log)
		}
	}
}

func TestASessionHasACertificateOfItsOwnAndVersionsOfTLS(t *testing.T) {
	t.Parallel() // it waits, mostly
	c, own := haproxytest.NewCertificate(t, haproxytest.ECDSA...), haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "ssl-max-ver TLSv1.2 ca-file "+own.File+" verify required")
	versions, certificate := []string{"--min-version=1.2", "--max-version=1.2"}, []string{"--certificate=" + own.File, "--key=" + own.File}
	for name, test := range map[string]struct {
		args   []string
		serves bool
	}{
		"both":                          {slices.Concat(versions, certificate), true},
		"TLS 1.3 only, as by default":   {certificate, false},
		"no certificate, as by default": {versions, false},
	} {
		out, log, err := program(t, nil, append([]string{"session", "--host=127.0.0.1", "--port=" + strconv.Itoa(server.Port), "--sni=server.example", "--ca=" + c.File,
			"--timeout=1m", "--interval=50ms", "--duration=300ms"}, test.args...)...)
		if err != nil || strings.Contains(out, "p99") != test.serves || strings.Contains(out, "failed") == test.serves {
			t.Errorf("%s: %v: %q\n%s", name, err, out, log)
		}
	}
}

func TestWhatASessionRefuses(t *testing.T) {
	s := startServer(t)
	for want, args := range map[string][]string{
		"option host is missing":              {"--ca=" + s.ca},
		"the certificate is always verified":  {"--host=127.0.0.1"},
		"--ca: open /nowhere":                 {"--host=127.0.0.1", "--ca=/nowhere"},
		"option groups: ":                     {"--host=127.0.0.1", "--ca=" + s.ca, "--groups=MLKEM1025"},
		`path "x": give one that begins`:      {"--host=127.0.0.1", "--ca=" + s.ca, "--path=x"},
		"status 9: give an HTTP status":       {"--host=127.0.0.1", "--ca=" + s.ca, "--status=9"},
		"--interval 0s: give 1ms or more":     {"--host=127.0.0.1", "--ca=" + s.ca, "--interval=0"},
		"--duration -1s: give 0 or more":      {"--host=127.0.0.1", "--ca=" + s.ca, "--duration=-1s"},
		`"now": there are flags only`:         {"--host=127.0.0.1", "--ca=" + s.ca, "now"},
		"--status 200: with an empty --path":  {"--host=127.0.0.1", "--ca=" + s.ca, "--path=", "--status=200"},
		"--key: open /nowhere":                {"--host=127.0.0.1", "--ca=" + s.ca, "--certificate=" + s.ca, "--key=/nowhere"},
		"option key is missing":               {"--host=127.0.0.1", "--ca=" + s.ca, "--certificate=" + s.ca},
		"option maxVersion: ":                 {"--host=127.0.0.1", "--ca=" + s.ca, "--max-version=1.1"},
		"--file: open /nowhere/sessions":      {"--host=127.0.0.1", "--ca=" + s.ca, "--file=/nowhere/sessions"},
		"--metrics: listen tcp: address 9090": {"--host=127.0.0.1", "--ca=" + s.ca, "--metrics=9090"},
	} {
		if _, log, err := program(t, nil, append([]string{"session"}, args...)...); err == nil || !strings.Contains(log, want) {
			t.Errorf("%v: %v, %q", args, err, log)
		}
	}
}

func TestThePageOfSessionsHasEachFlagAndMetric(t *testing.T) {
	page, err := os.ReadFile("../docs/benchmarks/sessions.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _, err := program(t, nil, "session", "--help")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(help, -1)
	if len(flags) < 10 {
		t.Fatalf("flags %q of\n%s", flags, help)
	}
	for _, flag := range flags {
		if !bytes.Contains(page, []byte("`--"+flag[1]+"`")) {
			t.Errorf("the page does not explain --%s", flag[1])
		}
	}
	source, err := os.ReadFile("xqtls/session.go")
	if err != nil {
		t.Fatal(err)
	}
	metrics := regexp.MustCompile(`"(qtls_session_[a-z_]+)"`).FindAllSubmatch(source, -1)
	if len(metrics) == 0 {
		t.Fatal("there are no metrics")
	}
	for _, metric := range metrics {
		if !bytes.Contains(page, []byte("| `"+string(metric[1])+"` |")) {
			t.Errorf("the page does not explain %s", metric[1])
		}
	}
}
