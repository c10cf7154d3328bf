package main

import (
	"bytes"
	"strings"
	"testing"

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
