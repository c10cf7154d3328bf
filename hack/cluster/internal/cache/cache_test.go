package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestKeyDependsOnEveryInputAndItsBounds(t *testing.T) {
	keys := map[string][]string{}
	for _, in := range [][]string{{}, {""}, {"a"}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc"}} {
		k := Key(in...)
		if other, ok := keys[k]; ok {
			t.Errorf("%q and %q have the same key", other, in)
		}
		keys[k] = in
	}
	if Key("a", "b") != Key("a", "b") {
		t.Error("equal inputs have different keys")
	}
}

func TestModuleInputsChangeWithSourcesButNotWithTests(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module m\n")
	write(t, dir, "sub/a.go", "package sub\n")
	key := func() string {
		in, err := Module(dir)
		if err != nil {
			t.Fatal(err)
		}
		return Key(in...)
	}
	before := key()
	write(t, dir, "sub/a_test.go", "package sub\n")
	write(t, dir, "README.md", "text\n")
	if key() != before {
		t.Error("a test or a text changed the key")
	}
	write(t, dir, "go.sum", "x\n")
	withSum := key()
	if withSum == before {
		t.Error("go.sum did not change the key")
	}
	write(t, dir, "sub/a.go", "package sub // changed\n")
	if key() == withSum {
		t.Error("a source did not change the key")
	}
}

func TestModuleRefusesAnEmptyFolder(t *testing.T) {
	if _, err := Module(t.TempDir()); err == nil {
		t.Error("an empty folder was taken for a Go module")
	}
}

func TestEnsureBuildsOnlyWhatIsMissing(t *testing.T) {
	s := Store{Root: t.TempDir()}
	var built []string
	build := func(missing []string, dir string) error {
		built = append(built, missing...)
		for _, f := range missing {
			write(t, dir, f, f)
		}
		return nil
	}
	for _, want := range [][]string{{"a", "b"}, {"a"}, {"b", "c"}} {
		if s.Has("g", "k", want) != (len(want) == 1) { // only "a" alone is there before
			t.Errorf("Has(%v) is %v", want, len(want) != 1)
		}
		dir, err := s.Ensure(context.Background(), "g", "k", want, build)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range want {
			if b, err := os.ReadFile(filepath.Join(dir, f)); err != nil || string(b) != f {
				t.Errorf("%s: %q, %v", f, b, err)
			}
		}
	}
	if !slices.Equal(built, []string{"a", "b", "c"}) {
		t.Errorf("built %v", built)
	}
}

func TestAFailedBuildLeavesNoEntry(t *testing.T) {
	s := Store{Root: t.TempDir()}
	_, err := s.Ensure(context.Background(), "g", "k", []string{"a"}, func(_ []string, dir string) error {
		write(t, dir, "a", "half")
		return errors.New("compiler said no")
	})
	if err == nil || !strings.Contains(err.Error(), "compiler said no") {
		t.Fatalf("err = %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.Root, "entries", "g", "k", "a")); err == nil {
		t.Error("a half-built file is in the cache")
	}
	if _, err := os.Stat(filepath.Join(s.Root, "work", "g")); err == nil {
		t.Error("the work folder was left behind")
	}
}

func TestABuildThatForgetsAFileIsAnError(t *testing.T) {
	s := Store{Root: t.TempDir()}
	_, err := s.Ensure(context.Background(), "g", "k", []string{"a"}, func([]string, string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "left no a") {
		t.Errorf("err = %v", err)
	}
}

func TestTwoAtOnceBuildOnce(t *testing.T) {
	s := Store{Root: t.TempDir()}
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_, err := s.Ensure(context.Background(), "g", "k", []string{"a"}, func(_ []string, dir string) error {
				builds.Add(1)
				time.Sleep(50 * time.Millisecond)
				return os.WriteFile(filepath.Join(dir, "a"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("%d builds", n)
	}
}

func TestLockGivesUpWhenTheCallerDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(context.Background(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	told := false
	if _, err := Lock(ctx, path, func() { told = true }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if !told {
		t.Error("the wait was not told of")
	}
}

func TestPruneKeepsTheTwoLatestAndTheRecent(t *testing.T) {
	group := t.TempDir()
	now := time.Now()
	ages := map[string]time.Duration{"current": 0, "last-month": 30 * 24 * time.Hour, "last-year": 365 * 24 * time.Hour}
	for name, age := range ages {
		write(t, group, name+"/file", "x")
		if err := os.Chtimes(filepath.Join(group, name), now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(group, now); err != nil {
		t.Fatal(err)
	}
	if got := names(t, group); !slices.Equal(got, []string{"current", "last-month"}) {
		t.Errorf("left: %v", got)
	}
	write(t, group, "yesterday/file", "x")
	write(t, group, "today/file", "x")
	if err := prune(group, now); err != nil {
		t.Fatal(err)
	}
	if got := names(t, group); !slices.Equal(got, []string{"current", "today", "yesterday"}) {
		t.Errorf("left: %v", got)
	}
}

func TestFolderOutlivesItsEntries(t *testing.T) {
	s := Store{Root: t.TempDir()}
	src := filepath.Join(s.Root, "binary")
	write(t, s.Root, "binary", "content")
	dir, err := s.Folder(context.Background(), "bin", map[string]string{"tool": src})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "tool")); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDefaultFollowsTheEnvironment(t *testing.T) {
	t.Setenv("QTLS_CACHE", "/c")
	if d, err := Default(); err != nil || d != "/c/cluster" {
		t.Errorf("%q, %v", d, err)
	}
	t.Setenv("QTLS_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/x")
	if d, err := Default(); err != nil || d != "/x/qtls/cluster" {
		t.Errorf("%q, %v", d, err)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var n []string
	for _, e := range entries {
		n = append(n, e.Name())
	}
	slices.Sort(n)
	return n
}
