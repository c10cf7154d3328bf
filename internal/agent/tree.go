package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

const (
	treesDir        = "rev"
	currentLink     = "current"
	certificatesDir = "certs"
	ticketsDir      = "tickets"
	revisionFile    = "revision.json"
	stateFile       = "state.json"
	adminSocket     = "admin.sock"
	leavingFile     = "leaving"
)

// ownFiles of a tree are not for a revision to write.
var ownFiles = []string{haproxy.ConfigFile, haproxy.BackendsFile, haproxy.PKCS11File, revisionFile, stateFile, adminSocket}

// tree is a whole configuration on disk, and what is in it. Its files always
// hold what a HAProxy that starts from it is to run: each change at run time is
// made in them too.
type tree struct {
	// Name of its folder: <revision>-<number>.
	Name     string
	Revision dataplane.Revision
	state
}

// state is what changes in a tree; stateFile keeps it for an agent that is
// started anew.
type state struct {
	Target       dataplane.Target        `json:"target"`
	Slots        haproxy.Slots           `json:"slots"`
	Certificates map[string]*certificate `json:"certificates"`
	// Tickets is nil where no session is resumed.
	Tickets *ticketKeys `json:"tickets,omitempty"`
	// Reloads of HAProxy since the pod started.
	Reloads int `json:"reloads"`
}

// clone lets a change be made, and told, before it counts.
func (s state) clone() state {
	s.Certificates = maps.Clone(s.Certificates)
	return s
}

// trees is the folder that HAProxy and the agent share.
type trees struct {
	dir string
	// libraries that HAProxy's container has.
	libraries dataplane.Libraries
}

func (t trees) path(tree string, file ...string) string {
	return filepath.Join(append([]string{t.dir, treesDir, tree}, file...)...)
}

// admin is the socket of the worker that runs the tree. Each tree has its own,
// so that no command reaches the worker of another one while that still ends
// its connections.
func (t trees) admin(tree string) runtime.Admin {
	return runtime.Admin{Socket: runtime.Socket(t.path(tree, adminSocket))}
}

// running is the tree whose worker takes connections, and what that says of
// itself: the current tree, or another while the agent has not had HAProxy load
// the current one yet, or has ended before it could.
func (t trees) running(ctx context.Context) (string, runtime.Info, bool) {
	current, _ := t.current()
	others, _ := t.names()
	others = slices.DeleteFunc(others, func(name string) bool { return name == current })
	for _, name := range append([]string{current}, others...) {
		info, err := t.admin(name).Info(ctx)
		if err == nil && !info.Stopping {
			return name, info, true
		}
	}
	return "", runtime.Info{}, false
}

// leaving says whether HAProxy's container is about to close its ports, or has. The
// file is for the agent's to see, and goes when HAProxy's container starts again.
func (t trees) leaving() bool {
	_, err := os.Stat(filepath.Join(t.dir, leavingFile))
	return err == nil
}

func (t trees) leave() error { return os.WriteFile(filepath.Join(t.dir, leavingFile), nil, 0o600) }

// Stay undoes what a drain before the container's last end left.
func Stay(runDir string) error {
	err := os.Remove(filepath.Join(runDir, leavingFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// names of the trees there are.
func (t trees) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(t.dir, treesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// write puts a whole new tree on disk and names it. It is not in use yet.
func (t trees) write(revision dataplane.Revision, s state) (*tree, error) {
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	last := 0
	for _, n := range names {
		_, number, _ := strings.Cut(n, "-")
		i, _ := strconv.Atoi(number)
		last = max(last, i)
	}
	out := &tree{Name: fmt.Sprintf("%s-%d", s.Target.Revision, last+1), Revision: revision, state: s}
	if err := t.writeAll(out); err != nil {
		t.remove(out.Name)
		return nil, fmt.Errorf("writing configuration %s: %w", out.Name, err)
	}
	return out, nil
}

func (t trees) writeAll(tr *tree) error {
	files := map[string]string{haproxy.ConfigFile: tr.Revision.Config}
	maps.Copy(files, tr.Revision.Files)
	for name, content := range files {
		if err := writeFile(t.path(tr.Name, name), []byte(content)); err != nil {
			return err
		}
	}
	for name, c := range tr.Certificates {
		if err := t.writeCertificate(tr, name, c); err != nil {
			return err
		}
	}
	if err := t.writeTickets(tr); err != nil {
		return err
	}
	if err := t.writeHSM(tr); err != nil {
		return err
	}
	if err := writeJSON(t.path(tr.Name, revisionFile), tr.Revision); err != nil {
		return err
	}
	return t.writeBackends(tr)
}

// writeBackends writes the backends with their present endpoints, and the state.
func (t trees) writeBackends(tr *tree) error {
	content := fmt.Sprintf("# The socket of the worker that runs this configuration.\nglobal\n    stats socket %s mode 600 level admin\n\n%s",
		t.path(tr.Name, adminSocket), haproxy.Backends(tr.Revision, tr.Slots))
	if err := writeFile(t.path(tr.Name, haproxy.BackendsFile), []byte(content)); err != nil {
		return err
	}
	return t.writeState(tr)
}

func (t trees) writeCertificate(tr *tree, name string, c *certificate) error {
	return writeFile(t.path(tr.Name, haproxy.CertificateFile(name)), c.PEM)
}

// writeTickets writes the files of ticket keys, each with the keys of its scope.
func (t trees) writeTickets(tr *tree) error {
	if tr.Revision.Tickets == nil || tr.Tickets == nil {
		return nil
	}
	for _, f := range tr.Revision.Tickets.Files {
		if err := writeFile(t.path(tr.Name, haproxy.TicketFile(f.Name)), tr.Tickets.For(f.Scope).File()); err != nil {
			return err
		}
	}
	return nil
}

func (t trees) writeState(tr *tree) error {
	return writeJSON(t.path(tr.Name, stateFile), tr.state)
}

// read a tree that an earlier process wrote.
func (t trees) read(name string) (*tree, error) {
	tr := &tree{Name: name}
	for file, into := range map[string]any{revisionFile: &tr.Revision, stateFile: &tr.state} {
		content, err := os.ReadFile(t.path(name, file))
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(content, into); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	for certificateName, c := range tr.Certificates {
		content, err := os.ReadFile(t.path(name, haproxy.CertificateFile(certificateName)))
		if err != nil {
			return nil, err
		}
		// A process that ended between the two writes leaves an older state:
		// the digest then shows the certificate as changed, and it is set again.
		c.PEM, c.Digest = content, digest(content)
	}
	return tr, nil
}

// current is the name of the tree that HAProxy starts from; empty before the
// first.
func (t trees) current() (string, error) {
	target, err := os.Readlink(filepath.Join(t.dir, currentLink))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(target), err
}

// use makes a tree the one that HAProxy starts from, at once.
func (t trees) use(name string) error {
	return replaceLink(filepath.Join(t.dir, currentLink), filepath.Join(treesDir, name))
}

// replaceLink at once: a reader sees what the link led to before, or the target.
func replaceLink(link, target string) error {
	next := link + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

func (t trees) remove(name string) { _ = os.RemoveAll(t.path(name)) }

// removeOthers frees the memory of all trees but one.
func (t trees) removeOthers(keep string) {
	names, _ := t.names()
	for _, n := range names {
		if n != keep {
			t.remove(n)
		}
	}
}

func writeJSON(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFile(path, content)
}

// writeFile replaces a file at once: a reader sees the old content or the new.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return os.Rename(temporary, path)
}
