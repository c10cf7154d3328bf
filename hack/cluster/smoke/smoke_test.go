// Package smoke tries a real cluster: it builds qtls-cluster, brings a cluster up with it, uses
// what a cluster is for, breaks its nodes, and checks that nothing is left when it is down. It
// needs root and runs only when QTLS_CLUSTER_SMOKE is set:
//
//	QTLS_CLUSTER_SMOKE=1 go test -count=1 -v ./smoke
package smoke

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/images"
)

//go:embed testdata.yaml
var objects string

const appImage = "qtls.local/smoke/app:1"

// tools are what the tests call.
type tools struct {
	t *testing.T
	// cluster and app are compiled; archive is app's image.
	cluster, app, archive string
	kubectlPath           string
	kubeconfig            string
}

func TestCluster(t *testing.T) {
	x := prepare(t)
	before := look(t, x.cluster)
	before.mustBeEmpty(t)
	t.Cleanup(func() {
		if t.Failed() {
			x.try("down")
		}
	})

	begin := time.Now()
	x.run("up", "--nodes=2", "--metrics-server", "--kwok")
	t.Logf("up with two nodes: %.1f s", time.Since(begin).Seconds())
	t.Run("up is idempotent and refuses other parameters", x.sub(testUpAgain))
	x.run("load", x.archive)
	x.waitSchedulable()
	x.apply(objects)
	for _, c := range []struct {
		name string
		test func(*tools)
	}{
		{"a Service balances over pods on both nodes, by its DNS name", testService},
		{"node ports and host ports answer from the control plane's network", testPorts},
		{"exec, logs and port-forward", testStreams},
		{"a CPU limit is enforced", testCPULimit},
		{"a memory limit ends in OOMKilled", testMemoryLimit},
		{"a volume outlives its pod", testVolume},
		{"an Indexed Job completes", testIndexedJob},
		{"metrics-server measures nodes", testMetrics},
		{"kwok plays a node", testKwok},
		{"cert-manager issues certificates and refuses nonsense", testCertManager},
		{"a node that is cut off is unreachable until healed", testCutAndHeal},
		{"a killed node's pods are replaced and it can boot again", testKillAndBoot},
	} {
		if !t.Run(c.name, x.sub(c.test)) {
			x.dump()
		}
	}

	begin = time.Now()
	x.run("down")
	t.Logf("down: %.1f s", time.Since(begin).Seconds())
	after := look(t, x.cluster)
	after.mustBeEmpty(t)
	if before.mounts != after.mounts || before.links != after.links {
		t.Errorf("mounts or links differ:\n%s\n%s\n\n%s\n%s", before.mounts, before.links, after.mounts, after.links)
	}
	x.run("down") // twice is fine
}

func TestRunTakesTheClusterDownWhateverHappens(t *testing.T) {
	x := prepare(t)
	t.Cleanup(func() { x.try("down") })
	start := func(command ...string) *exec.Cmd {
		cmd := exec.Command(x.cluster, append([]string{"run", "--"}, command...)...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	t.Run("the command's exit code is passed on", func(t *testing.T) {
		cmd := start("sh", "-c", `test -s "$KUBECONFIG" && exit 42`)
		if code := exitCode(cmd.Wait()); code != 42 {
			t.Errorf("exit code %d", code)
		}
		look(t, x.cluster).mustBeEmpty(t)
	})
	t.Run("SIGTERM ends the command, what it left running, and the cluster", func(t *testing.T) {
		marker := filepath.Join(t.TempDir(), "started")
		cmd := start("sh", "-c", "sleep 987654 & touch "+marker+"; wait")
		x.eventually(func() error { _, err := os.Stat(marker); return err })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(cmd.Wait()); code != 128+int(syscall.SIGTERM) {
			t.Errorf("exit code %d", code)
		}
		look(t, x.cluster).mustBeEmpty(t)
		if out, err := exec.Command("pgrep", "-f", "sleep 987654").Output(); err == nil {
			t.Errorf("the command's child still runs: %s", out)
		}
	})
	t.Run("SIGINT during the start", func(t *testing.T) {
		cmd := start("true")
		x.eventually(func() error { return expect(x.try("status"), "cp") })
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(cmd.Wait()); code != 1 {
			t.Errorf("exit code %d", code)
		}
		look(t, x.cluster).mustBeEmpty(t)
	})
	t.Run("after SIGKILL the machines end by themselves and the next command cleans up", func(t *testing.T) {
		marker := filepath.Join(t.TempDir(), "started")
		cmd := start("sh", "-c", "touch "+marker+"; sleep 3")
		x.eventually(func() error { _, err := os.Stat(marker); return err })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		x.eventually(func() error {
			if n := len(look(t, x.cluster).processes); n > 0 {
				return fmt.Errorf("%d processes of the cluster are left", n)
			}
			return nil
		})
		again := start("true")
		if err := again.Wait(); err != nil {
			t.Error(err)
		}
		look(t, x.cluster).mustBeEmpty(t)
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	x := prepare(t)
	t.Run("a port that is taken", func(t *testing.T) {
		server := &http.Server{Addr: "127.0.0.1:16444", ReadHeaderTimeout: time.Second}
		go func() { _ = server.ListenAndServe() }()
		defer server.Close()
		x.eventually(func() error { return dial("127.0.0.1:16444") })
		mustSay(t, x.try("up", "--port=16444"), "port 16444 of 127.0.0.1 is taken", "--port")
		look(t, x.cluster).mustBeEmpty(t)
	})
	t.Run("not root", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(copyTo(t, x.cluster, "/tmp"), "qtls-cluster"), "up")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "QTLS_CACHE="+dir, "HOME="+dir)
		out, _ := cmd.CombinedOutput()
		mustSay(t, result{out: string(out)}, "needs root", "sudo")
	})
	for name, args := range map[string][]string{
		"no cluster":          {"load", x.archive},
		"no cluster for exec": {"exec", "--", "true"},
		"no cluster for node": {"node", "kill", "n1"},
	} {
		t.Run(name, func(t *testing.T) { mustSay(t, x.try(args...), "no cluster is up", "qtls-cluster up") })
	}
}

func testUpAgain(x *tools) {
	mustSay(x.t, x.try("up", "--nodes=2", "--metrics-server", "--kwok"), "already up")
	r := x.try("up", "--nodes=1")
	mustSay(x.t, r, "other parameters", "qtls-cluster down")
	if r.err == nil {
		x.t.Error("other parameters were accepted")
	}
	mustSay(x.t, x.try("node", "kill", "n9"), `"n9"`, "n1, n2")
	x.run("status")
}

func testService(x *tools) {
	x.kubectl("rollout", "status", "deployment/web", "--timeout="+patience.String())
	nodes := strings.Fields(x.kubectl("get", "pods", "--selector=app=web", "--output=jsonpath={.items[*].spec.nodeName}"))
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		x.t.Errorf("the pods are on %v", nodes)
	}
	seen := map[string]bool{}
	x.eventually(func() error {
		answer, err := x.tryKubectl("exec", "deployment/web", "--", "/app", "get", "http://web.default.svc.cluster.local")
		if err != nil {
			return err
		}
		seen[strings.TrimSpace(answer)] = true
		if len(seen) < 2 {
			return fmt.Errorf("only %v answered", seen)
		}
		return nil
	})
	// The same from a node, with the node's view of names and Services.
	x.eventually(func() error {
		return expect(x.try("exec", "--node=n2", "--", x.app, "get", "http://web.default.svc.cluster.local"), "web-")
	})
}

func testPorts(x *tools) {
	x.kubectl("wait", "--for=condition=Ready", "pod/hostport", "--timeout="+patience.String())
	for _, url := range []string{"http://10.70.0.11:30080", "http://10.70.0.12:30080"} {
		x.eventually(func() error { return expect(x.try("exec", "--", x.app, "get", url), "web-") })
	}
	x.eventually(func() error {
		return expect(x.try("exec", "--", x.app, "get", "http://10.70.0.11:8088"), "hostport")
	})
}

func testStreams(x *tools) {
	if out := x.kubectl("exec", "deployment/web", "--", "/app", "print", "hello"); out != "hello\n" {
		x.t.Errorf("exec printed %q", out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, x.kubectlPath, "port-forward", "service/web", ":80") // it chooses a port that is free
	cmd.Env = append(os.Environ(), "KUBECONFIG="+x.kubeconfig)
	said, err := cmd.StdoutPipe()
	if err != nil {
		x.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	var port int
	lines := bufio.NewReader(said)
	if line, err := lines.ReadString('\n'); err != nil {
		x.t.Fatal(err)
	} else if _, err := fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d ->", &port); err != nil {
		x.t.Fatalf("port-forward printed %q: %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	x.eventually(func() error {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || !bytes.HasPrefix(body, []byte("web-")) {
			return fmt.Errorf("%q, %w", body, err)
		}
		return nil
	})
}

func testCPULimit(x *tools) {
	x.waitPhase("burn", "Succeeded")
	share, err := strconv.ParseFloat(strings.TrimSpace(x.kubectl("logs", "burn")), 64)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Logf("with a limit of 0.2 CPUs a busy loop got %.2f", share)
	if share > 0.3 { // less says only that the machine is busy
		x.t.Errorf("a limit of 0.2 CPUs gave %.2f", share)
	}
}

func testMemoryLimit(x *tools) {
	x.waitPhase("eat", "Failed")
	if reason := x.kubectl("get", "pod", "eat", "--output=jsonpath={.status.containerStatuses[0].state.terminated.reason}"); reason != "OOMKilled" {
		x.t.Errorf("the reason is %q", reason)
	}
}

func testVolume(x *tools) {
	x.kubectl("rollout", "status", "statefulset/keep", "--timeout="+patience.String())
	var first string
	x.eventually(func() (err error) {
		if first, err = x.tryKubectl("logs", "keep-0"); err == nil && first == "" {
			err = errors.New("it has printed nothing yet")
		}
		return err
	})
	x.kubectl("delete", "pod", "keep-0")
	x.kubectl("rollout", "status", "statefulset/keep", "--timeout="+patience.String())
	x.eventually(func() error {
		second, err := x.tryKubectl("logs", "keep-0")
		if err == nil && (second != first || second == "") {
			err = fmt.Errorf("first %q, then %q", first, second)
		}
		return err
	})
}

func testIndexedJob(x *tools) {
	x.kubectl("wait", "--for=condition=Complete", "job/indexed", "--timeout="+patience.String())
	logs := x.kubectl("logs", "--selector=job-name=indexed")
	for i := range 3 {
		if !strings.Contains(logs, fmt.Sprintf("index %d\n", i)) {
			x.t.Errorf("index %d is missing in %q", i, logs)
		}
	}
}

func testMetrics(x *tools) {
	x.eventually(func() error {
		out, err := x.tryKubectl("top", "nodes", "--no-headers")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "n1 ") || !strings.Contains(out, "n2 ") {
			return fmt.Errorf("printed %q", out)
		}
		return nil
	})
}

func testKwok(x *tools) {
	x.kubectl("wait", "--for=condition=Ready", "node/fake", "--timeout="+patience.String())
	x.kubectl("wait", "--for=condition=Ready", "pod/faked", "--timeout="+patience.String())
}

func testCertManager(x *tools) {
	x.run("cert-manager")
	x.apply(certificates)
	x.kubectl("wait", "--for=condition=Ready", "certificate/leaf", "--timeout="+patience.String())
	x.eventually(func() error {
		_, err := x.kubectlIn(strings.Replace(certificates, "secretName: leaf", "secretName: leaf, duration: 1h, renewBefore: 2h", 1), "apply", "--server-side", "--filename=-")
		if err == nil || !strings.Contains(err.Error(), `admission webhook "webhook.cert-manager.io" denied the request`) {
			return fmt.Errorf("a certificate that is renewed before it begins: %w", err)
		}
		return nil
	})
	x.run("cert-manager") // twice is fine
}

// certificates are a CA that signs itself and a certificate that it signs.
const certificates = `apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: root}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: ca}
spec: {secretName: ca, isCA: true, commonName: ca, privateKey: {algorithm: ECDSA}, issuerRef: {name: root}}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: ca}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: ca}
spec: {ca: {secretName: ca}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: leaf}
spec: {secretName: leaf, dnsNames: [leaf.example], issuerRef: {name: ca}}
`

func testCutAndHeal(x *tools) {
	x.run("node", "cut", "n2")
	x.waitNode("n2", "Unknown")
	mustSay(x.t, x.try("status"), "cut")
	x.run("node", "heal", "n2")
	x.waitNode("n2", "True")
}

func testKillAndBoot(x *tools) {
	x.run("node", "kill", "n2")
	mustSay(x.t, x.try("status"), "off")
	mustSay(x.t, x.try("node", "kill", "n2"), "off already")
	x.waitNode("n2", "Unknown")
	x.eventually(func() error {
		out, err := x.tryKubectl("get", "pods", "--selector=app=web", "--field-selector=spec.nodeName=n1", "--output=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}")
		if err == nil && out != "True True" {
			err = fmt.Errorf("the pods on n1 are ready: %q", out)
		}
		return err
	})
	x.run("node", "boot", "n2")
	x.waitNode("n2", "True")
	// It runs pods again, from the images that are still on its disk.
	x.waitSchedulable()
	x.kubectl("delete", "pod", "--selector=app=web", "--wait=false")
	x.eventually(func() error {
		out, err := x.tryKubectl("get", "pods", "--selector=app=web", "--field-selector=spec.nodeName=n2,status.phase=Running", "--output=name")
		if err == nil && out == "" {
			err = errors.New("no pod runs on n2")
		}
		return err
	})
}

// prepare compiles the programs and makes the image.
func prepare(t *testing.T) *tools {
	t.Helper()
	if os.Getenv("QTLS_CLUSTER_SMOKE") == "" {
		t.Skip("QTLS_CLUSTER_SMOKE is not set")
	}
	dir := t.TempDir()
	x := &tools{t: t, cluster: filepath.Join(dir, "qtls-cluster"), app: filepath.Join(dir, "app"), archive: filepath.Join(dir, "app.tar")}
	for out, pkg := range map[string]string{x.cluster: "..", x.app: "./app"} {
		cmd := exec.Command("go", "build", "-o", out, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, msg)
		}
	}
	if x.try("status").err == nil {
		t.Skip("a cluster is up, and this test looks for what one leaves behind; end it first: qtls-cluster down")
	}
	if err := images.Write(x.archive, images.Image{Reference: appImage, Program: "app"}, x.app); err != nil {
		t.Fatal(err)
	}
	x.kubectlPath = filepath.Join(strings.TrimSpace(x.run("bin")), "kubectl")
	x.kubeconfig = strings.TrimSpace(x.run("kubeconfig"))
	return x
}
