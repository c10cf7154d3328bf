package agent

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
)

func TestWithoutHAProxyThereIsNoUsage(t *testing.T) {
	w := httptest.NewRecorder()
	(&Agent{Options: Options{Metrics: NewMetrics()}}).usage(w, httptest.NewRequest(http.MethodGet, "/v1/usage", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

const (
	snmp    = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm RtoMin MaxConn InSegs OutSegs RetransSegs InErrs\nTcp: 1 200 -1 500 990 10 0\nUdp: InDatagrams\nUdp: 7\n"
	netstat = "TcpExt: SyncookiesSent TCPDSACKRecv\nTcpExt: 0 3\n"
	dev     = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
		"    lo:    7777      10    0    0    0     0          0         0     7777      10    0    0    0     0       0          0\n" +
		"  eth0:  1000      10    0    0    0     0          0         0     3000      20    0    0    0     0       0          0\n" +
		"  eth1:50      1    0    0    0     0          0         0     60      1    0    0    0     0       0          0\n"
)

func TestThePodsNetworkIsTCPsAndThatOfItsInterfaces(t *testing.T) {
	read := func(snmp, netstat, dev string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			return []byte(map[string]string{"/proc/self/net/snmp": snmp, "/proc/self/net/netstat": netstat, "/proc/self/net/dev": dev}[name]), nil
		}
	}
	want := dataplane.Network{Segments: 1000, Retransmitted: 7, BytesReceived: 1050, BytesSent: 3060}
	if n, err := networkOf(read(snmp, netstat, dev)); n != want || err != nil {
		t.Errorf("%+v, %v, want %+v", n, err, want)
	}
	for _, bad := range [][3]string{{"", netstat, dev}, {"Tcp: OutSegs\nTcp: 1\n", netstat, dev}, {"Tcp: OutSegs RetransSegs\nTcp: 1 x\n", netstat, dev}, {snmp, "", dev},
		{snmp, netstat, "eth0: 1 2\n"}, {snmp, netstat, "eth0: a 2 3 4 5 6 7 8 9\n"}} {
		if n, err := networkOf(read(bad[0], bad[1], bad[2])); err == nil {
			t.Errorf("%q is read as %+v", bad, n)
		}
	}
	if n, err := networkOf(os.ReadFile); err != nil || n.Segments < n.Retransmitted {
		t.Errorf("this pod: %+v, %v", n, err)
	}
}

func TestVersionsAreThoseOfThePrograms(t *testing.T) {
	got := parseHAProxyVersions("HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/\nBuilt with SSL library version : OpenSSL 3.6.5 29 Sep 2026\nRunning on SSL library version : OpenSSL 3.5.7 9 Jun 2026 (VERSIONS DIFFER!)\n")
	if want := map[string]string{"HAProxy": "3.2.26-1", "OpenSSL": "3.5.7"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	got = parseProviderVersion("Providers:\n  default\n    name: OpenSSL Default Provider\n    version: 3.5.7\n    status: active\n  oqsprovider\n    name: Q-TLS post-quantum provider (liboqs, KpqC)\n    version: 0.1.0\n    status: active\n")
	if want := map[string]string{"oqsprovider": "0.1.0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := parseProviderVersion("Providers:\n  default\n    version: 3.5.7\n"); len(got) != 0 {
		t.Errorf("without the provider: %v", got)
	}
}

func TestHSMUsageIsOfEachMember(t *testing.T) {
	path := filepath.Join(t.TempDir(), "12.json")
	if u, err := hsmUsageOf(path); u != nil || err != nil {
		t.Errorf("of a worker that has ended: %+v, %v", u, err)
	}
	const status = `{"members":[{"name":"a","sessions":4,"latencyMicros":{"count":10,"sum":2500,"max":900}},{"name":"b","sessions":2,"latencyMicros":{"count":1,"sum":500,"max":500}}]}`
	if err := os.WriteFile(path, []byte(status), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	want := dataplane.HSMUsage{Time: at.UnixNano(), Members: []dataplane.HSMMemberUsage{
		{Name: "a", Sessions: 4, Signatures: 10, Waited: 2500 * time.Microsecond}, {Name: "b", Sessions: 2, Signatures: 1, Waited: 500 * time.Microsecond}}}
	if u, err := hsmUsageOf(path); err != nil || !reflect.DeepEqual(*u, want) {
		t.Errorf("%+v, %v, want %+v", u, err, want)
	}
}

// lenders is a socket to lend folders on, those that pass a check.
func lenders(t *testing.T, check func(dir string) error) (socket string, b *borrowed) {
	t.Helper()
	socket, b = filepath.Join(t.TempDir(), "loan.sock"), &borrowed{}
	conn, err := listenForLoans(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); b.borrow(conn, check) }()
	t.Cleanup(func() { conn.Close(); <-done })
	return socket, b
}

func TestTheControlGroupThatIsLentLastCounts(t *testing.T) {
	if err := LendControlGroup(filepath.Join(t.TempDir(), "loan.sock"), t.TempDir()); err == nil {
		t.Error("lent to nobody")
	}
	socket, b := lenders(t, func(string) error { return nil })
	if _, err := b.usage(); !errors.Is(err, errNotLent) {
		t.Errorf("nothing is lent: %v", err)
	}
	for _, memory := range []string{"100", "200"} {
		dir := t.TempDir()
		for name, text := range map[string]string{"memory.current": memory + "\n", "memory.stat": "inactive_file 1\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := LendControlGroup(socket, dir); err != nil {
			t.Fatal(err)
		}
		// What is no folder is not taken.
		if err := LendControlGroup(socket, filepath.Join(dir, "memory.stat")); err != nil {
			t.Fatal(err)
		}
		want, _ := strconv.ParseInt(memory, 10, 64)
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			u, err := b.usage()
			if err == nil && u.Memory == want-1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("lent %s: %+v, %v", dir, u, err)
			}
		}
	}
}

func TestAFolderThatIsNoControlGroupIsNotBorrowed(t *testing.T) {
	checked := make(chan error, 1)
	socket, b := lenders(t, func(dir string) error {
		err := cgroup.Check(dir)
		checked <- err
		return err
	})
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.current": "100\n", "memory.stat": "inactive_file 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := LendControlGroup(socket, dir); err != nil {
		t.Fatal(err)
	}
	if err := <-checked; err == nil {
		t.Error("a folder of files of that name is taken for a control group")
	}
	if u, err := b.usage(); !errors.Is(err, errNotLent) {
		t.Errorf("%+v, %v", u, err)
	}
}

// HAProxy's container can make the agent hold no files: a pipe ends when nobody has
// its other end any more.
func TestWhatIsNotBorrowedIsClosed(t *testing.T) {
	socket, _ := lenders(t, func(string) error { return errors.New("refused") })
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	for sent := 1; sent <= 3; sent++ {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		fds := slices.Repeat([]int{int(w.Fd())}, sent)
		if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(fds...), &unix.SockaddrUnix{Name: socket}, 0); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("of %d files in a message some stay open: %v", sent, err)
		}
	}
}

// HAProxy starts where nobody takes what its container sends.
func TestLendingWaitsForNobody(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "loan.sock")
	conn, err := listenForLoans(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	dir, full := t.TempDir(), make(chan error, 1)
	go func() {
		for {
			if err := LendControlGroup(socket, dir); err != nil {
				full <- err
				return
			}
		}
	}()
	select {
	case err := <-full:
		if !errors.Is(err, unix.EAGAIN) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the sender hangs")
	}
}
