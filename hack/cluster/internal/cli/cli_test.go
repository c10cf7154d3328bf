package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// parse runs the argument checks of a command line, but not the command.
func parse(t *testing.T, line ...string) (*cobra.Command, error) {
	t.Helper()
	root := newRoot()
	cmd, rest, err := root.Find(line)
	if err != nil {
		return nil, err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return nil, err
	}
	return cmd, cmd.ValidateArgs(cmd.Flags().Args())
}

func TestCommandLinesThatAreAccepted(t *testing.T) {
	for _, line := range []string{
		"up", "up --nodes 3 --metrics-server --kwok --static-cpus --proxy-mode iptables --port 7443",
		"down", "status", "kubeconfig", "build", "bin", "assets", "cert-manager",
		"node kill n1", "node boot n1", "node cut n1", "node heal n1",
		"load a.tar", "load a.tar b.tar",
		"run -- true", "run --nodes 2 -- go test ./...", "run -- sh -c --nodes",
		"exec -- ip addr", "exec --node n1 -- curl --silent http://web",
	} {
		if _, err := parse(t, strings.Fields(line)...); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestCommandLinesThatAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"up extra":          "unknown command",
		"up --nodes many":   "invalid argument",
		"node kill":         "accepts 1 arg",
		"load":              "requires at least 1 arg",
		"run true":          `put -- before the command "true"`,
		"run":               "which command to run",
		"run --":            "which command to run",
		"exec --node n1":    "which command to run",
		"exec x -- y":       `"x" before --`,
		"fly":               "unknown command",
		"up --no-such-flag": "unknown flag",
	} {
		_, err := parse(t, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestFlagsAfterTheDashesAreTheCommands(t *testing.T) {
	cmd, err := parse(t, "run", "--nodes", "2", "--", "test", "--nodes", "9")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := cmd.Flags().GetInt("nodes"); err != nil || n != 2 {
		t.Errorf("nodes = %d, %v", n, err)
	}
	if got := strings.Join(cmd.Flags().Args(), " "); got != "test --nodes 9" {
		t.Errorf("the command is %q", got)
	}
}

func TestExitCodesOfUsersCommandsAreNotMessages(t *testing.T) {
	if got := Main([]string{"up", "--no-such-flag"}); got != 1 {
		t.Errorf("a wrong flag gives %d", got)
	}
	if got := Main([]string{"--help"}); got != 0 {
		t.Errorf("--help gives %d", got)
	}
}
