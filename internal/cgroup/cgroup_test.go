package cgroup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// group is a folder with these files.
func group(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var (
	v2 = map[string]string{
		"cpu.stat":       "usage_usec 900\nuser_usec 700\nsystem_usec 200\nnr_periods 300\nnr_throttled 290\nthrottled_usec 1500\n",
		"memory.current": "62914560\n", "memory.peak": "83886080\n", "memory.max": "268435456\n",
		"memory.stat":     "anon 52428800\ninactive_file 10485760\n",
		"memory.events":   "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
		"memory.pressure": "some avg10=0.00 avg60=0.10 avg300=0.00 total=900\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=400\n",
	}
	v1 = map[string]string{
		"cpu/cpu.stat":                 "nr_periods 300\nnr_throttled 290\nthrottled_time 1500000\nnr_bursts 0\nburst_time 0\n",
		"cpuacct/cpuacct.usage":        "900000\n",
		"memory/memory.usage_in_bytes": "62914560\n", "memory/memory.max_usage_in_bytes": "83886080\n", "memory/memory.limit_in_bytes": "268435456\n",
		"memory/memory.stat":        "inactive_file 1\ntotal_inactive_file 10485760\n",
		"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
	}
)

func TestBothVersionsTellTheSame(t *testing.T) {
	stalled := 400 * time.Microsecond
	want := Usage{CPU: 900 * time.Microsecond, Periods: 300, ThrottledPeriods: 290, Throttled: 1500 * time.Microsecond, Memory: 50 << 20, MemoryPeak: 80 << 20, MemoryLimit: 256 << 20, OOMKills: 2}
	if got, err := Read(group(t, v1)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("version 1: %+v, %v", got, err)
	}
	want.MemoryStalled = &stalled
	if got, err := Read(group(t, v2)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("version 2: %+v, %v", got, err)
	}
}

func TestWhatTheKernelDoesNotTellIsNotObserved(t *testing.T) {
	got, err := Read(group(t, map[string]string{"memory.current": "10\n", "memory.stat": "inactive_file 20\n", "memory.max": "max\n"}))
	if err != nil || got != (Usage{}) {
		t.Errorf("%+v, %v", got, err)
	}
	none := map[string]string{"memory/memory.usage_in_bytes": "10\n", "memory/memory.stat": "cache 1\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}
	if got, err := Read(group(t, none)); err != nil || got != (Usage{Memory: 10}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "tells of no memory") {
		t.Errorf("no control group: %v", err)
	}
}

func TestFilesOfAnotherFormAreNotRead(t *testing.T) {
	for name, text := range map[string]string{
		"cpu.stat": "nr_periods many\n", "memory.current": "10 MB\n", "memory.max": "-\n", "memory.peak": "1.5\n", "memory.stat": "anon\n",
		"memory.events": "oom_kill\n", "memory.pressure": "full avg10=0.00 total=much\n",
	} {
		files := maps.Clone(v2)
		files[name] = text
		if _, err := Read(group(t, files)); !errors.Is(err, errMalformed) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever lends a folder has made what is in it: it names nothing outside, and keeps
// no reader waiting.
func TestNothingButFilesInTheFolderIsRead(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("42\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"a link to outside": func(path string) error { return os.Symlink(secret, path) },
		"a pipe":            func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":          func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		files := maps.Clone(v2)
		delete(files, "memory.current")
		dir := group(t, files)
		if err := make(filepath.Join(dir, "memory.current")); err != nil {
			t.Fatal(err)
		}
		if u, err := Read(dir); err == nil {
			t.Errorf("%s is read: %+v", name, u)
		}
	}
}

// Version 1 has cpu and cpuacct in one folder, and a link to it for each.
func TestLinksInsideTheFolderAreFollowed(t *testing.T) {
	dir := group(t, v1)
	if err := errors.Join(os.Rename(filepath.Join(dir, "cpu"), filepath.Join(dir, "cpu,cpuacct")), os.Symlink("cpu,cpuacct", filepath.Join(dir, "cpu"))); err != nil {
		t.Fatal(err)
	}
	if u, err := Read(dir); err != nil || u.Periods != 300 {
		t.Errorf("%+v, %v, want 300 periods", u, err)
	}
}

func TestAControlGroupIsTheKernels(t *testing.T) {
	for _, dir := range []string{group(t, v2), group(t, v1), "/proc", "/none"} {
		if Check(dir) == nil {
			t.Errorf("%s is taken for a control group", dir)
		}
	}
	if _, err := Read(Dir); err != nil {
		t.Skipf("no control group is mounted here: %v", err)
	}
	if err := Check(Dir); err != nil {
		t.Error(err)
	}
}

// The kernel's own files are of the form that is read.
func TestTheGroupOfThisTestIsRead(t *testing.T) {
	u, err := Read(Dir)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no control group is mounted here with memory accounting, of which the root of version 2 has none")
	}
	if err != nil || u.Memory <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestTheCPUsOfAQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int
		fails bool
	}{
		{name: "version 2, two", files: map[string]string{"cpu.max": "200000 100000\n"}, want: 2},
		{name: "two and a bit", files: map[string]string{"cpu.max": "200001 100000\n"}, want: 3},
		{name: "a twentieth", files: map[string]string{"cpu.max": "5000 100000\n"}, want: 1},
		{name: "no quota", files: map[string]string{"cpu.max": "max 100000\n"}},
		{name: "version 1, two", files: map[string]string{"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, want: 2},
		{name: "no quota", files: map[string]string{"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}},
		{name: "no file of one"},
		{name: "another form", files: map[string]string{"cpu.max": "many\n"}, fails: true},
		{name: "no period", files: map[string]string{"cpu.max": "1000 0\n"}, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := CPUs(group(t, c.files)); got != c.want || (err != nil) != c.fails {
				t.Errorf("%d CPUs, %v; want %d, an error: %v", got, err, c.want, c.fails)
			}
		})
	}
}
