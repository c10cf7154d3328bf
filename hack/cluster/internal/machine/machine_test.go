package machine

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
)

func TestPrepareLeavesWhatTheMachineReads(t *testing.T) {
	host := Host{Dir: t.TempDir(), Bin: "/b", PKI: "/p", Log: "/l", Shared: "/s"}
	want := Spec{
		Name:        "n1",
		Cgroup:      "qtls-cluster-n1",
		Hierarchies: []cgroup.Hierarchy{{Controllers: "memory", Dir: "/sys/fs/cgroup/memory"}},
		Binds:       HostBinds(host),
		Files:       map[string]string{"cni/10.conflist": "{}"},
		Daemons:     []Daemon{{Name: "kubelet", Args: []string{"kubelet"}, After: "unix:///s"}},
		Lifeline:    true,
	}
	if err := Prepare(host, want); err != nil {
		t.Fatal(err)
	}
	got, err := readSpec(filepath.Join(host.Dir, "etc", specFile))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if b, err := os.ReadFile(filepath.Join(host.Dir, "etc", "cni", "10.conflist")); err != nil || string(b) != "{}" {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Stat(filepath.Join(host.Dir, "tmp")); err != nil || info.Mode()&os.ModeSticky == 0 || info.Mode().Perm() != 0o777 {
		t.Errorf("/tmp of the machine: %v, %v", info.Mode(), err)
	}
}

func TestABootAgainMayPrepareAgain(t *testing.T) {
	host := Host{Dir: t.TempDir()}
	for range 2 {
		if err := Prepare(host, Spec{Name: "n1"}); err != nil {
			t.Fatal(err)
		}
	}
}

// The volumes' folder lies in /tmp, so it must be shown after /tmp is.
func TestBindsAreInAnOrderThatHidesNone(t *testing.T) {
	binds := HostBinds(Host{Dir: "/d", Bin: "/b", PKI: "/p", Log: "/l", Shared: "/s"})
	for i, b := range binds {
		for _, earlier := range binds[:i] {
			if strings.HasPrefix(earlier.Target+"/", b.Target+"/") {
				t.Errorf("%s at %s hides %s", b.Source, b.Target, earlier.Target)
			}
		}
	}
}

func TestSysctlsAreNamedWithDots(t *testing.T) {
	if got := sysctlPath("net.ipv4.ip_forward"); got != "/proc/sys/net/ipv4/ip_forward" {
		t.Errorf("%q", got)
	}
}

func TestEndsAreDescribed(t *testing.T) {
	for status, want := range map[syscall.WaitStatus]string{
		syscall.WaitStatus(3 << 8): "ended with code 3",
		syscall.WaitStatus(9):      "ended by signal 9 (killed)",
	} {
		if got := describe(status); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAProbeOfASocketWantsAListener(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	answers, err := probe("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	if answers() {
		t.Error("a missing socket answers")
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !answers() {
		t.Error("a listener does not answer")
	}
}

func TestAProbeOfAPageWants200FromTheRightServer(t *testing.T) {
	status := http.StatusForbidden
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	answers, err := pageProbe(server.URL, ca)
	if err != nil {
		t.Fatal(err)
	}
	if answers() {
		t.Error("403 counts as an answer")
	}
	status = http.StatusOK
	if !answers() {
		t.Error("200 does not count as an answer")
	}
	if _, err := pageProbe(server.URL, []byte("no PEM")); err == nil {
		t.Error("a CA that cannot be read was accepted")
	}
}

func TestOtherProbesAreRefused(t *testing.T) {
	for _, after := range []string{"/run/socket", "tcp://x", "http://x"} {
		if _, err := probe(after); err == nil {
			t.Errorf("%q was accepted", after)
		}
	}
}

func TestTheInternalCommandIsNotForPeople(t *testing.T) {
	for _, args := range [][]string{nil, {"machine-enter"}, {"x", "y"}} {
		if err := Main(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
