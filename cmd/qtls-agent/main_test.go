package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"qtls.dev/qtls/internal/testnet"
	"qtls.dev/qtls/internal/version"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"version", 0, version.Version, ""},
		{"help", 0, "Usage:", ""},
		{"", exitUsage, "", "Usage:"},
		{"start", exitUsage, "", `no command "start"`},
		{"run --namespace shop --gateway web", exitUsage, "", "--pod is needed"},
		{"run --namespace shop --gateway web --pod web-1 now", exitUsage, "", `unexpected argument "now"`},
		{"run --nonsense", exitUsage, "", "-nonsense"},
		{"run -h", 0, "", "name of the gateway"},
		{"run --namespace shop --gateway web --pod web-1", exitFailed, "", "in-cluster configuration"},
		{"haproxy -W", exitUsage, "", "-W"},
		{"drain --delay 5", exitUsage, "", "delay"},
		{"drain --delay -5s", exitUsage, "", "not below 0s"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := command(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

const limitOfTest = "QTLS_TEST_MEMORY_LIMIT"

// What a process limits, it limits for good: this one becomes a shell that tells.
func TestMain(m *testing.M) {
	if memory, set := os.LookupEnv(limitOfTest); set {
		if err := limitDescriptors(memory); err != nil {
			fmt.Println(err)
		}
		fmt.Println(syscall.Exec("/bin/sh", []string{"sh", "-c", "ulimit -Sn; ulimit -Hn"}, nil))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestHAProxyHasTheDescriptorsThatItsMemoryIsFor(t *testing.T) {
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	told := func(memory string) []string {
		t.Helper()
		c := exec.Command("/proc/self/exe")
		c.Env = []string{limitOfTest + "=" + memory}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
	want := fmt.Sprint(min(own.Max, 19660))
	if got := told("1073741824"); len(got) != 2 || got[0] != want || got[1] != want {
		t.Errorf("with 1 GiB of memory the limits are %q, want %s", got, want)
	}
	for _, unknown := range []string{"", "1Gi"} {
		got := told(unknown)
		if hard := got[len(got)-1]; hard != "unlimited" && hard != fmt.Sprint(own.Max) {
			t.Errorf("memory %q: the limit is %s, want what it was: %d", unknown, hard, own.Max)
		}
	}
}

func TestHAProxyKnowsWhatItMayUse(t *testing.T) {
	var log bytes.Buffer
	for _, c := range []struct {
		quota string // as in cpu.max
		want  []string
		warns bool
	}{
		{"150000 100000", []string{"QTLS_THREADS=2"}, false},
		{"max 100000", nil, false},
		{"9000000000 100000", []string{"QTLS_THREADS=1024"}, false},
		{"none", nil, true},
	} {
		t.Run(c.quota, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(c.quota+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			log.Reset()
			var threads, ports []string
			for _, variable := range environment(dir, slog.New(slog.NewJSONHandler(&log, nil))) {
				if strings.HasPrefix(variable, "QTLS_THREADS=") {
					threads = append(threads, variable)
				} else {
					ports = append(ports, variable)
				}
			}
			if !slices.Equal(threads, c.want) || (log.Len() > 0) != c.warns {
				t.Errorf("%q, want %q; log %q", threads, c.want, log.String())
			}
			if len(ports) == 0 || !strings.HasPrefix(ports[0], "QTLS_SELECTED_CONNECTIONS_1=") {
				t.Errorf("%q does not say how many connections a port takes", ports)
			}
		})
	}
}

func TestHAProxyListensOnIPv4WhereThereIsNoIPv6(t *testing.T) {
	const variable = "QTLS_ADDRESS=0.0.0.0"
	log := slog.New(slog.DiscardHandler)
	if slices.Contains(environment(t.TempDir(), log), variable) {
		t.Errorf("%s where there is IPv6", variable)
	}
	testnet.WithoutIPv6(t)
	if !slices.Contains(environment(t.TempDir(), log), variable) {
		t.Errorf("no %s where there is no IPv6", variable)
	}
}
