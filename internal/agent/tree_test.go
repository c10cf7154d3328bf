package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

func testState(revision dataplane.Revision) state {
	p := want(revision, 3, here)
	c := cert("pq", "ML-DSA-65", "")
	c.PEM = []byte("PEM")
	c.Digest = digest(c.PEM)
	return state{Target: p.Target, Slots: haproxy.Assign(revision, nil, p.Endpoints), Certificates: map[string]*certificate{"pq": c}, Reloads: 4}
}

func TestATreeReadsBackAsItWasWritten(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	revision := firstRevision
	revision.Files = map[string]string{"lists/web.list": "certs/pq.pem\n"}
	written, err := trees.write(revision, testState(revision))
	if err != nil {
		t.Fatal(err)
	}
	read, err := trees.read(written.Name)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read, written) {
		t.Errorf("read %+v, written %+v", read, written)
	}
	if err := filepath.WalkDir(trees.path(written.Name), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v: it may hold keys", path, info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	state, err := os.ReadFile(trees.path(written.Name, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(state), "PEM") {
		t.Errorf("the state holds a key: %s", state)
	}
	backends, err := os.ReadFile(trees.path(written.Name, haproxy.BackendsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"stats socket " + string(trees.admin(written.Name).Socket), "10.0.0.1:80"} {
		if !strings.Contains(string(backends), want) {
			t.Errorf("no %q in %s", want, backends)
		}
	}
}

func TestACertificateOnDiskCountsMoreThanTheState(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	written, err := trees.write(firstRevision, testState(firstRevision))
	if err != nil {
		t.Fatal(err)
	}
	newer := *written.Certificates["pq"]
	newer.PEM = []byte("PEM of later")
	if err := trees.writeCertificate(written, "pq", &newer); err != nil { // and the process ends
		t.Fatal(err)
	}
	read, err := trees.read(written.Name)
	if err != nil {
		t.Fatal(err)
	}
	if read.Certificates["pq"].Digest != digest(newer.PEM) {
		t.Error("the state's digest hides what HAProxy would start from")
	}
}

func TestTreesFollowEachOther(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	if name, err := trees.current(); name != "" || err != nil {
		t.Errorf("current is %q, %v", name, err)
	}
	var names []string
	for _, r := range []dataplane.Revision{firstRevision, secondRevision, firstRevision} {
		s := testState(r)
		written, err := trees.write(r, s)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(names, written.Name) {
			t.Fatalf("%s was there already: HAProxy would read half of each", written.Name)
		}
		names = append(names, written.Name)
		if err := trees.use(written.Name); err != nil {
			t.Fatal(err)
		}
		if name, err := trees.current(); name != written.Name || err != nil {
			t.Errorf("current is %q, %v", name, err)
		}
	}
	trees.removeOthers(names[2])
	if left, _ := trees.names(); !slices.Equal(left, names[2:]) {
		t.Errorf("left: %v", left)
	}
	link, err := os.Readlink(filepath.Join(trees.dir, currentLink))
	if err != nil || filepath.IsAbs(link) {
		t.Errorf("the link is %q, %v; want a relative one, which holds wherever the volume is mounted", link, err)
	}
}

func TestTheTreeThatRunsIsThatWhoseWorkerTakesConnections(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	worker := func(tree, stopping string) {
		if err := os.MkdirAll(trees.path(tree), 0o700); err != nil {
			t.Fatal(err)
		}
		if stopping != "" {
			answerWith(t, string(trees.admin(tree).Socket), func(string) string {
				return "Version: 3.2.26\nPid: 7\nStopping: " + stopping + "\n\n"
			})
		}
	}
	runs := func(want string) {
		t.Helper()
		if got, info, ok := trees.running(t.Context()); got != want || ok != (want != "") || ok && info.PID != 7 {
			t.Errorf("%q runs (%+v, %v), want %q", got, info, ok, want)
		}
	}
	runs("")
	worker("ends-1", "1")
	worker("next-3", "") // to be loaded
	if err := trees.use("next-3"); err != nil {
		t.Fatal(err)
	}
	runs("")
	worker("serves-2", "0")
	runs("serves-2")
	worker("also-4", "0") // before the other by its name
	if err := trees.use("serves-2"); err != nil {
		t.Fatal(err)
	}
	runs("serves-2")
}

func TestATreeThatCannotBeWrittenLeavesNothing(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	broken := firstRevision
	broken.Files = map[string]string{"a": "", "a/b": ""}
	if _, err := trees.write(broken, testState(broken)); err == nil {
		t.Fatal("a file is a folder too")
	}
	if left, _ := trees.names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
