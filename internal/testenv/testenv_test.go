//go:build integration

package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestKindsAreServed(t *testing.T) {
	c := testenv.Client(t)
	ns := testenv.Namespace(t, c)
	issuer := &v1alpha1.PQCIssuer{Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
	issuer.Namespace, issuer.Name = ns, "root"
	if err := c.Create(t.Context(), issuer); err != nil {
		t.Errorf("a kind of Q-TLS: %v", err)
	}
	var requests cmapi.CertificateRequestList
	if err := c.List(t.Context(), &requests); err != nil {
		t.Errorf("a kind of cert-manager: %v", err)
	}
}

// killed says that this process is the one that the test below kills.
const killed = "QTLS_TESTENV_KILLED"

// A test process that is killed stops nothing, and what it started ends with it.
func TestTheAPIServerEndsWithATestProcessThatIsKilled(t *testing.T) {
	if os.Getenv(killed) != "" {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or who would kill it is gone
		return
	}
	victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	victim.Env, victim.Stderr = append(os.Environ(), killed+"=1"), os.Stderr
	if _, err := victim.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	started := childrenOf(t, victim.Process.Pid)
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	if err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	var names []string
	for _, name := range started {
		names = append(names, name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"etcd", "kube-apiserver"}) {
		t.Fatalf("it has started %q", names)
	}
	testenv.Eventually(t, func(context.Context) error {
		for pid, name := range started {
			if p, ok := processOf(pid); ok && p.name == name && p.state != "Z" { // nobody need have buried it
				return fmt.Errorf("%s still runs, as process %d", name, pid)
			}
		}
		return nil
	})
}

// process is what the kernel says of one.
type process struct {
	name, state string
	parent      int
}

// processOf a number; there may be none.
func processOf(pid int) (process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	before, after, found := strings.Cut(string(text), ") ") // PID (NAME) STATE PARENT …
	_, name, _ := strings.Cut(before, " (")
	fields := strings.Fields(after)
	if err != nil || !found || len(fields) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{name, fields[0], parent}, err == nil
}

// childrenOf a process, by their numbers.
func childrenOf(t *testing.T, parent int) map[int]string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int]string{}
	for _, folder := range all {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := processOf(pid); ok && p.parent == parent {
			children[pid] = p.name
		}
	}
	return children
}
