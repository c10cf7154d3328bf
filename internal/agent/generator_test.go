//go:build crypto

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/evidence"
	benchload "qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/testcert"
)

// generator is a pod of a benchmark's load generator: the image's own program.
type generator struct {
	t       *testing.T
	program string
	dir     string // what it finds at /mnt
	network *network
	// group that it is in; nil: the test's. quota is its CPUs from the load's start on,
	// 0 without one: it would take long to get there.
	group *controlGroup
	quota float64
	// lead is how long it takes to start, at least.
	lead time.Duration
}

const generatorCA = "ca.crt"

// newGenerator trusts a family.
func newGenerator(t *testing.T, f *family) *generator {
	t.Helper()
	g := &generator{t: t, program: os.Getenv("QTLS_K6"), dir: t.TempDir(), lead: 2 * time.Second}
	if g.program == "" {
		t.Skip("QTLS_K6 is not set: `make test-crypto` sets it to the load generator's program (k6)")
	}
	if err := os.WriteFile(filepath.Join(g.dir, generatorCA), testcert.PEM(f.cert), 0o644); err != nil { //nolint:gosec // it is public
		t.Fatal(err)
	}
	for dir := g.dir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user reads it
			t.Fatal(err)
		}
	}
	return g
}

// capacity is a closed loop against the gateway's post-quantum certificate.
func capacity(host string, clients int) benchload.Load {
	return benchload.Load{
		Version: benchload.Version, Point: "run/1/capacity/1", Pods: 1, WarmUp: benchload.Late, Window: 2 * time.Second,
		Phase: benchload.Capacity, VUs: clients, Operation: benchload.Handshake,
		Client: benchload.Client{Host: host, Port: dualPort, SNI: testHost, CAFile: "/mnt/" + generatorCA, Groups: []string{"X25519MLKEM768"},
			SignatureAlgorithms: []string{"mldsa65", "ecdsa_secp256r1_sha256"}, Timeout: patience.String()},
	}
}

// run makes a load once; ok is false when it began too late for that.
func (g *generator) run(l benchload.Load) (result shard.Result, ok bool) {
	g.t.Helper()
	text, err := l.Text()
	if err != nil {
		g.t.Fatal(err)
	}
	const script = `set -e
mount --make-rprivate /
mount -t tmpfs none "$ROOT/mnt"
touch "$ROOT/mnt/qtls-k6" "$ROOT/mnt/` + generatorCA + `"
mount --bind "$PROGRAM" "$ROOT/mnt/qtls-k6"
mount --bind "$DIR/` + generatorCA + `" "$ROOT/mnt/` + generatorCA + `"
mount -t tmpfs none "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
` + mountControlGroups + `
exec chroot --userspec=65532:65532 "$ROOT" /mnt/qtls-k6 measure`
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "ROOT=" + gatewayRootfs(g.t), "DIR=" + g.dir, "PROGRAM=" + g.program,
		benchload.Variable + "=" + text, benchload.IndexVariable + "=0"}
	if g.group != nil {
		g.group.limitCPU(1)
		cmd.Env = append(cmd.Env, "CGROUPS="+g.group.hierarchies())
	}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := g.network.do(cmd.Start); err != nil {
		g.t.Fatal(err)
	}
	if g.group != nil {
		time.Sleep(time.Until(time.Unix(0, l.Start)))
		g.group.limitCPU(g.quota)
	}
	failed := cmd.Wait()
	if strings.Contains(log.String(), "start passed") || strings.Contains(log.String(), "after its window") {
		return shard.Result{}, false
	}
	shards, err := shard.Read(&out)
	if failed != nil || err != nil {
		g.t.Fatalf("the load generator: %v, %v\n%s", failed, err, log.String())
	}
	if result, err = shard.Merge(shards); err != nil {
		g.t.Fatalf("%v\n%s", err, log.String())
	}
	return result, true
}

// measured is the evidence of a capacity: what the generator saw, and what the pod's
// agent told at both ends of the window. An agent that gave no answer at one of them,
// or a generator that did not start in time, has it made again.
func (p *pod) measured(g *generator, l benchload.Load, quota float64) validity.Evidence {
	p.t.Helper()
	var last error
	for deadline := time.Now().Add(5 * patience); time.Now().Before(deadline); {
		l.Start = time.Now().Add(g.lead).UnixNano()
		var looks [2]dataplane.Usage
		var errs [2]error
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			for i, at := range []time.Time{l.Begin(), l.End().Add(-l.Window / 10)} {
				time.Sleep(time.Until(at))
				looks[i], errs[i] = p.used()
			}
		}()
		result, ok := g.run(l)
		<-looked
		switch {
		case !ok:
			last = fmt.Errorf("the load generator does not start within %s", g.lead)
			g.lead *= 2
			continue
		case errs[0] != nil || errs[1] != nil:
			last = fmt.Errorf("the agent: %w", errors.Join(errs[:]...))
			continue
		}
		e := validity.Evidence{Phase: validity.Capacity, Window: l.Window, Common: result.Common, Handshakes: result.Count(), WantedReplicas: 1,
			Generator: evidence.Generator(result, l.Window, g.quota), Replicas: []validity.Replica{evidence.Replica(looks[0], looks[1])}}
		e.Replicas[0].Name, e.Replicas[0].Quota = p.name, quota
		evidence.Complete(&e, result)
		return e
	}
	p.t.Fatalf("nothing is measured: %v", last)
	return validity.Evidence{}
}
