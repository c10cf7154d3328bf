package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryProgramIsInOneGroupAndNamesItself(t *testing.T) {
	all := append(append(ForMachines(true), ForEnvtest()...), ForUsers()...)
	all = append(all, CoreDNS, MetricsServer, CertManager, Pause)
	for _, p := range all {
		n := 0
		for _, g := range groups {
			if g.has(p) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is in %d groups", p, n)
		}
	}
}

func TestEveryImageHasAProgram(t *testing.T) {
	seen := map[string]ImageName{}
	for n, c := range catalogue {
		if other, ok := seen[n.Reference()]; ok {
			t.Errorf("%s and %s share the name %s", n, other, n.Reference())
		}
		seen[n.Reference()] = n
		if !strings.HasPrefix(n.Reference(), "qtls.local/") {
			t.Errorf("%s could be pulled from a registry: %s", n, n.Reference())
		}
		found := false
		for _, g := range groups {
			found = found || g.has(c.program)
		}
		if !found {
			t.Errorf("%s: no group builds %s", n, c.program)
		}
	}
}

func TestBinaryNamesFollowTheGoCommand(t *testing.T) {
	for pkg, want := range map[string]string{
		"k8s.io/kubernetes/cmd/kubelet":                      "kubelet",
		"go.etcd.io/etcd/server/v3":                          "server",
		"./coredns":                                          "coredns",
		"github.com/opencontainers/runc@v1.5.2":              "runc",
		"github.com/containerd/containerd/v2/cmd/ctr@v2.4.2": "ctr",
		"example.com/v2ray":                                  "v2ray",
		".":                                                  "qtls",
	} {
		if got := binaryName(pkg); got != want {
			t.Errorf("binaryName(%q) = %q, want %q", pkg, got, want)
		}
	}
}

func TestKeysChangeWithWhatIsBuilt(t *testing.T) {
	dir := t.TempDir()
	source := func(content string) {
		if err := os.MkdirAll(filepath.Join(dir, "m"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "m", "go.mod"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source("module m\n")
	b := &Builder{Sources: dir}
	base := group{name: "g", module: "m", packages: map[Program]string{"a": "./a"}}
	published := group{name: "g", packages: map[Program]string{"a": "example.com/a@v1"}}
	keys := map[string]string{}
	add := func(what string, g group) {
		k, err := b.key(g)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := keys[k]; ok {
			t.Errorf("%s has the key of %s", what, other)
		}
		keys[k] = what
	}
	add("the first", base)
	source("module m // changed\n")
	add("another go.mod", base)
	base.tags = "x"
	add("other tags", base)
	base.cgo = true
	add("cgo", base)
	add("a published module", published)
	published.packages = map[Program]string{"a": "example.com/a@v2"}
	add("its next version", published)
}

func TestUnknownNamesAreRefused(t *testing.T) {
	b := &Builder{}
	if _, err := b.Programs(context.Background(), "vi"); err == nil || !strings.Contains(err.Error(), `"vi"`) {
		t.Errorf("err = %v", err)
	}
	if _, err := b.Images(context.Background(), "vi.tar"); err == nil || !strings.Contains(err.Error(), `"vi.tar"`) {
		t.Errorf("err = %v", err)
	}
}

func TestAFailureShowsTheEndOfItsLogAndWhereItIs(t *testing.T) {
	log := filepath.Join(t.TempDir(), "build-x.log")
	content := strings.Repeat("noise\n", 100) + "x.go:1: undefined: y\n"
	if err := os.WriteFile(log, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("exit status 1")
	err := failure("building x", cause, log)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "x.go:1: undefined: y") || !strings.Contains(err.Error(), log) {
		t.Errorf("err = %v", err)
	}
	if n := strings.Count(err.Error(), "noise"); n != 19 {
		t.Errorf("%d lines of noise", n)
	}
}

func TestMissingPackagesAreNamedOnceWithTheCommand(t *testing.T) {
	absent := []string{"qtls-no-such-command"}
	err := checkPackages([]tool{{absent, "one"}, {absent, "two"}, {absent, "one"}, {[]string{"true"}, "three"}})
	if err == nil || !strings.HasSuffix(err.Error(), "apt-get install -y --no-install-recommends one two") {
		t.Errorf("err = %v", err)
	}
	if err := checkPackages([]tool{{[]string{"true"}, "three"}}); err != nil {
		t.Error(err)
	}
}

func TestTooLittleDiskIsRefusedBeforeBuilding(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	if err := CheckDisk(dir, 0, "nothing"); err != nil {
		t.Error(err)
	}
	if err := CheckDisk(dir, 1<<20, "everything"); err == nil || !strings.Contains(err.Error(), "QTLS_CACHE") {
		t.Errorf("err = %v", err)
	}
}

func TestTheSourcesAreFound(t *testing.T) {
	dir, err := FindSources()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"kube/go.mod", "kube/go.sum", "certmanager/go.mod", "pause/pause.c"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
}

// The versions that this package names must be those that the modules require.
func TestVersionsAgreeWithTheModules(t *testing.T) {
	for _, c := range []struct{ module, requirement string }{
		{"kube", "k8s.io/kubernetes v" + KubernetesVersion},
		{"kube", "helm.sh/helm/v4 v" + helmVersion},
		{"certmanager", "github.com/cert-manager/cert-manager v" + CertManagerVersion},
	} {
		mod, err := os.ReadFile(filepath.Join("..", "..", c.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mod), "\t"+c.requirement) && !strings.Contains(string(mod), "require "+c.requirement) {
			t.Errorf("%s/go.mod does not require %s", c.module, c.requirement)
		}
	}
}
