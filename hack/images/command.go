package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// progress tells on standard error what is going on; standard output carries results alone.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// debianPackages says which Debian package has a command that this program runs.
var debianPackages = map[string]string{"buildah": "buildah", "mmdebstrap": "mmdebstrap", "chroot": "coreutils", "mount": "mount"}

// command prepares a command whose whole process group ends with the context.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// inPrivateMounts lets the command mount without leaving anything behind: root gets a mount namespace that ends with the
// command. Others need none, as their tools make a user namespace with its own mounts.
func inPrivateMounts(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	return cmd
}

// logged runs a command with its output in the cache's log folder. The title is shown with the time that it took. An
// error carries the last lines of the output and the log's path.
func (c *cache) logged(ctx context.Context, title, log string, cmd *exec.Cmd) error {
	path := c.path("log", log+".log")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head, err := fmt.Fprintf(f, "$ %s\n", cmd)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = f, f
	progress("%s ...", title)
	start := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: interrupted", title)
		}
		output, _ := os.ReadFile(path)
		return fmt.Errorf("%s: %w; the end of its output (all of it: %s):\n%s", title, err, path, lastLines(output[min(head, len(output)):], 30))
	}
	progress("%s: %.1f s", title, time.Since(start).Seconds())
	return nil
}

// output runs a command and returns its standard output; an error carries what it wrote to standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", cmd, err, lastLines(append(stdout.Bytes(), stderr.Bytes()...), 15))
	}
	return stdout.String(), nil
}

// requireCommands says which of the commands are missing and how to install them.
func requireCommands(names ...string) error {
	var missing, packages []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing, packages = append(missing, name), append(packages, debianPackages[name])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not installed: %s; on Debian: apt-get install --no-install-recommends %s",
		strings.Join(missing, ", "), strings.Join(packages, " "))
}

// lastLines returns the last n lines of output without empty ones, each cut to a readable length.
func lastLines(output []byte, n int) string {
	var kept []string
	for line := range strings.Lines(string(output)) {
		line = strings.TrimRight(line, " \r\n")
		// Of a line that was written over and over, the last state.
		if line = line[strings.LastIndex(line, "\r")+1:]; line == "" {
			continue
		}
		if len(line) > 300 {
			line = line[:300] + "..."
		}
		kept = append(kept, "  "+line)
	}
	return strings.Join(kept[max(0, len(kept)-n):], "\n")
}
