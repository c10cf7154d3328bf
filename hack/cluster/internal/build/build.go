// Package build compiles the cluster's programs and makes its images, each once for its content.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/hack/cluster/internal/cache"
	"qtls.dev/qtls/hack/cluster/internal/progress"
)

// A Builder builds from the sources into the cache.
type Builder struct {
	Cache cache.Store
	// Sources is the folder that holds the modules kube and certmanager and the folder pause.
	Sources string
	Out     *progress.Reporter
}

// FindSources returns the folder of this program's sources: where it was compiled, else
// hack/cluster in a folder above the current one.
func FindSources() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	compiled := filepath.Join(filepath.Dir(file), "..", "..")
	candidates := []string{compiled}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		candidates = append(candidates, filepath.Join(dir, "hack", "cluster"))
		if dir == filepath.Dir(dir) {
			break
		}
	}
	for _, c := range candidates {
		if _, err := os.Stat(filepath.Join(c, "kube", "go.mod")); err == nil && filepath.IsAbs(c) {
			return c, nil
		}
	}
	return "", errors.New("the sources hack/cluster/kube are not found; run this inside the checkout")
}

// Programs returns the cached files of the programs, building those that are missing.
func (b *Builder) Programs(ctx context.Context, wanted ...Program) (map[Program]string, error) {
	jobs, err := b.plan(wanted)
	if err != nil {
		return nil, err
	}
	if err := b.check(jobs); err != nil {
		return nil, err
	}
	files := map[Program]string{}
	for _, j := range jobs {
		dir, err := b.Cache.Ensure(ctx, j.group.name, j.key, j.programs, func(missing []string, dir string) error {
			return b.compile(ctx, j.group, missing, dir)
		})
		if err != nil {
			return nil, err
		}
		for _, p := range j.programs {
			files[Program(p)] = filepath.Join(dir, p)
		}
	}
	return files, nil
}

// A job is what is wanted of one group.
type job struct {
	group    group
	key      string
	programs []string
}

func (b *Builder) plan(wanted []Program) ([]job, error) {
	var jobs []job
	found := 0
	for _, g := range groups {
		j := job{group: g}
		for _, p := range wanted {
			if g.has(p) {
				j.programs = append(j.programs, string(p))
			}
		}
		if len(j.programs) == 0 {
			continue
		}
		found += len(j.programs)
		var err error
		if j.key, err = b.key(g); err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	if found != len(wanted) {
		return nil, fmt.Errorf("not all of the programs %q are known", wanted)
	}
	return jobs, nil
}

// check refuses builds that would fail for want of a tool or of room, before the first of them has
// taken minutes.
func (b *Builder) check(jobs []job) error {
	var tools []tool
	giB := 0
	for _, j := range jobs {
		if !b.Cache.Has(j.group.name, j.key, j.programs) {
			tools = append(tools, j.group.tools()...)
			giB += j.group.diskGiB
		}
	}
	if err := checkPackages(tools); err != nil {
		return err
	}
	return CheckDisk(b.Cache.Root, giB, "building the cluster's programs")
}

// Folder returns a folder that holds the programs by their names.
func (b *Builder) Folder(ctx context.Context, name string, wanted ...Program) (string, error) {
	files, err := b.Programs(ctx, wanted...)
	if err != nil {
		return "", err
	}
	names := map[string]string{}
	for p, f := range files {
		names[string(p)] = f
	}
	return b.Cache.Folder(ctx, name, names)
}

// key is what a group's programs are made from. All programs of a group share it: a change of one
// costs the others a link, not a compilation.
func (b *Builder) key(g group) (string, error) {
	inputs := []string{g.name, goToolchain, runtime.GOARCH, g.tags, g.ldflags, fmt.Sprint(g.cgo)}
	for _, p := range slices.Sorted(maps.Keys(g.packages)) {
		if g.module == "" {
			inputs = append(inputs, g.packages[p])
		}
	}
	if g.module != "" {
		module, err := cache.Module(filepath.Join(b.Sources, g.module))
		if err != nil {
			return "", err
		}
		inputs = append(inputs, module...)
	}
	for _, p := range slices.Sorted(maps.Keys(g.c)) {
		source, err := os.ReadFile(filepath.Join(b.Sources, g.c[p]))
		if err != nil {
			return "", err
		}
		inputs = append(inputs, string(source))
	}
	return cache.Key(inputs...), nil
}

func (b *Builder) compile(ctx context.Context, g group, programs []string, dir string) error {
	name := "building " + strings.Join(programs, ", ")
	return b.Out.Step(name, func() error {
		log, err := b.openLog(g.name)
		if err != nil {
			return err
		}
		defer log.Close()
		for _, cmd := range b.commands(ctx, g, programs, dir) {
			cmd.Stdout, cmd.Stderr = log, log
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go remove its work
			cmd.WaitDelay = 10 * time.Second
			fmt.Fprintf(log, "+ %s\n", strings.Join(cmd.Args, " "))
			if err := cmd.Run(); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				return failure(name, err, log.Name())
			}
		}
		return rename(g, programs, dir)
	})
}

// commands are the compiler's runs. Programs land in dir under the last part of the package's path.
func (b *Builder) commands(ctx context.Context, g group, programs []string, dir string) []*exec.Cmd {
	if len(g.c) > 0 {
		var cmds []*exec.Cmd
		for _, p := range programs {
			source := filepath.Join(b.Sources, g.c[Program(p)])
			cmds = append(cmds, exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", filepath.Join(dir, p), source))
		}
		return cmds
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", dir + "/"}
	if g.module == "" {
		args = []string{"install", "-trimpath"}
	}
	args = append(args, "-tags", g.tags, "-ldflags", g.ldflags)
	for _, p := range programs {
		args = append(args, g.packages[Program(p)])
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir // outside of every module
	if g.module != "" {
		cmd.Dir = filepath.Join(b.Sources, g.module)
	}
	cmd.Env = append(os.Environ(), goEnv(g.cgo)...)
	cmd.Env = append(cmd.Env, "GOBIN="+dir)
	return []*exec.Cmd{cmd}
}

// goEnv makes a build independent of the caller's Go settings.
func goEnv(cgo bool) []string {
	enabled := "0"
	if cgo {
		enabled = "1"
	}
	return []string{"GOTOOLCHAIN=" + goToolchain, "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH=" + runtime.GOARCH, "GOEXPERIMENT=", "CGO_ENABLED=" + enabled}
}

// rename gives the programs their names where Go took another from the package's path.
func rename(g group, programs []string, dir string) error {
	for _, p := range programs {
		pkg, ok := g.packages[Program(p)]
		if !ok {
			continue
		}
		if made := binaryName(pkg); made != p {
			if err := os.Rename(filepath.Join(dir, made), filepath.Join(dir, p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// binaryName is the name that the go command gives to a package's program.
func binaryName(pkg string) string {
	pkg, _, _ = strings.Cut(pkg, "@")
	if pkg == "." {
		return "qtls" // the last part of the module's path
	}
	name := path.Base(pkg)
	if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
		name = path.Base(path.Dir(pkg)) // a major version is no name
	}
	return name
}

func (b *Builder) openLog(name string) (*os.File, error) {
	dir := filepath.Join(b.Cache.Root, "logs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(dir, "build-"+name+".log"))
}

// failure is the error of a build that failed: the last lines of its log and where the rest is.
func failure(name string, err error, log string) error {
	content, readErr := os.ReadFile(log)
	if readErr != nil {
		return fmt.Errorf("%s: %w; its log: %w", name, err, readErr)
	}
	return fmt.Errorf("%s: %w\n%s\nThe whole log is %s", name, err, lastLines(content, 20), log)
}

func lastLines(content []byte, n int) string {
	lines := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// CheckDisk says whether the file system of dir, which may not exist yet, has room.
func CheckDisk(dir string, giB int, purpose string) error {
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("the free space of %s: %w", dir, err)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < uint64(giB)<<30 {
		return fmt.Errorf("%s needs %d GiB on the disk of %s, %.1f GiB are free; make room or set QTLS_CACHE and QTLS_CLUSTER_STATE to folders on another disk", purpose, giB, dir, float64(free)/(1<<30))
	}
	return nil
}
