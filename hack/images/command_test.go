package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// newCache is a cache in a temporary folder.
func newCache(t *testing.T) *cache {
	t.Helper()
	t.Setenv("QTLS_CACHE", t.TempDir())
	c, err := openCache()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAFailingCommandShowsItsLastLinesAndItsLog(t *testing.T) {
	c := newCache(t)
	err := c.logged(t.Context(), "build x", "build-x", command(t.Context(), "sh", "-c", "echo first; seq 100; echo E: no such package >&2; exit 3"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"build x: exit status 3", c.path("log", "build-x.log"), "E: no such package"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "first") {
		t.Errorf("the error holds the whole output: %v", err)
	}
	log, readErr := os.ReadFile(c.path("log", "build-x.log"))
	if readErr != nil || !strings.Contains(string(log), "first\n") {
		t.Errorf("the log lacks the whole output: %q, %v", log, readErr)
	}
}

func TestOfAFailingCommandItsOwnTextIsNotShown(t *testing.T) {
	err := newCache(t).logged(t.Context(), "run", "run", command(t.Context(), "sh", "-c", "# a long script\necho wrong; exit 1"))
	if err == nil || !strings.Contains(err.Error(), "wrong") || strings.Contains(err.Error(), "a long script") {
		t.Errorf("error %v", err)
	}
}

func TestAnInterruptedCommandEndsWithItsChildren(t *testing.T) {
	c := newCache(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The child and its parent hold one end of a pipe for as long as they live.
	alive, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	cmd := command(ctx, "sh", "-c", "(echo begun >&3; exec sleep 600) & wait")
	cmd.ExtraFiles = []*os.File{theirs}
	go func() {
		_, _ = alive.Read(make([]byte, len("begun\n")))
		cancel()
	}()
	err = c.logged(ctx, "wait", "wait", cmd)
	theirs.Close()
	if err == nil || err.Error() != "wait: interrupted" {
		t.Errorf("error %v, want wait: interrupted", err)
	}
	if err := alive.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := alive.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a child outlived the interrupted command: %v", err)
	}
}

func TestMissingCommandsComeWithTheirPackages(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := requireCommands("buildah", "mmdebstrap")
	if want := "apt-get install --no-install-recommends buildah mmdebstrap"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}

func TestLastLines(t *testing.T) {
	got := lastLines([]byte("one\n\ntwo\nprogress 1%\rprogress 99%\n"+strings.Repeat("x", 400)+"\n"), 3)
	want := "  two\n  progress 99%\n  " + strings.Repeat("x", 300) + "..."
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBuildArgumentsNeverPullAndReplaceStages(t *testing.T) {
	got := buildArgs(build{
		tag: "name:1", context: "/src", target: "system", export: "/out",
		stages: map[string]string{"build": "/stage"}, args: map[string]string{"B": "2", "A": "1"},
	})
	want := []string{
		"build", "--isolation=chroot", "--pull=never", "--force-rm", "--file=-", "--layers", "--tag=name:1", "--target=system",
		"--output=type=local,dest=/out", "--build-context=build=/stage", "--build-arg=A=1", "--build-arg=B=2", "/src",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if fresh := buildArgs(build{context: "/src", fresh: true}); !slices.Contains(fresh, "--no-cache") || slices.Contains(fresh, "--layers") {
		t.Errorf("a fresh build uses cached layers: %q", fresh)
	}
}

func TestRunRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Setenv("QTLS_CACHE", t.TempDir())
	for args, want := range map[string]string{
		"":                "no command",
		"push":            `no command "push"`,
		"build -fast":     "flag provided but not defined: -fast",
		"build apache":    `no image "apache"`,
		"rootfs":          "rootfs: name an image",
		"cargo":           "cargo: say what it is to do",
		"provider all":    `provider: unexpected argument "all"`,
		"kryoptic all":    `kryoptic: unexpected argument "all"`,
		"rootfs echo":     "made from scratch",
		"list -tars echo": "has not been built: images build echo",
		"verify echo":     "has not been built: images build echo",
	} {
		var out strings.Builder
		if err := run(t.Context(), strings.Fields(args), &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", args, err, want)
		}
	}
}

func TestLatestForgetsAnImageWhoseTarIsGone(t *testing.T) {
	c := newCache(t)
	dir := c.path("echo", "0123456789abcdef")
	tar := filepath.Join(dir, "qtls-echo-1.tar")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeFiles(dir, map[string][]byte{"image.json": []byte(`{"reference":"r:1","tar":"` + tar + `"}`), "qtls-echo-1.tar": nil}); err != nil {
		t.Fatal(err)
	}
	if err := link("0123456789abcdef", c.path("echo", "current")); err != nil {
		t.Fatal(err)
	}
	if r, ok := c.latest(image{id: "echo"}); !ok || r.Reference != "r:1" || r.Tar != tar {
		t.Errorf("got %+v, %t", r, ok)
	}
	if err := os.Remove(tar); err != nil {
		t.Fatal(err)
	}
	if r, ok := c.latest(image{id: "echo"}); ok {
		t.Errorf("still there: %+v", r)
	}
}

func TestRemoveOthersKeepsWhatItIsTold(t *testing.T) {
	dir := tree(t, map[string]string{"gateway-a/x": "", "gateway-b/x": "", "gateway-b.part/x": "", "client-a/x": "", "gateway-file": ""})
	if err := removeOthers(dir, "gateway-", "gateway-a"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"client-a", "gateway-a", "gateway-file"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}
