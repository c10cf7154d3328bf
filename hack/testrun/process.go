package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// toTidyUp is how long a command that was told to end may take to clean up, such
// as to take a cluster down.
const toTidyUp = 2 * time.Minute

// prepared bounds a preparation: with an empty cache it builds Kubernetes.
const prepared = time.Hour

// run returns the command's output.
func (p preparation) run(ctx context.Context, env []string, out io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, prepared)
	defer cancel()
	var stdout strings.Builder
	errors := newTail(out)
	cmd := command(ctx, env, p.command)
	cmd.Stdout, cmd.Stderr = &stdout, errors
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(p.command, " "), err, errors.text())
	}
	return strings.TrimSpace(stdout.String()) + p.suffix, nil
}

// run runs the step and adds what came of it to the result.
func (s step) run(ctx context.Context, env []string, out io.Writer, r *result) {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	start := time.Now()
	last := newTail(out)
	cmd := command(limited, slices.Concat(env, s.env), s.command)
	cmd.Stderr = last
	before := len(r.failures)
	var err error
	if s.tests != nil {
		reader := s.tests(s, out, last, r)
		cmd.Stdout = reader
		err = cmd.Run()
		reader.close()
	} else {
		cmd.Stdout = last
		err = cmd.Run()
	}
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		r.fail(s.name, fmt.Sprintf("took longer than %s and was ended\n%s", s.timeout, last.text()))
	case err != nil && len(r.failures) == before: // not known from a test's own result
		r.fail(s.name, fmt.Sprintf("%s: %v\n%s", strings.Join(s.command, " "), err, last.text()))
	case s.tests == nil && err == nil:
		r.passed++
		fmt.Fprintf(out, "  ok    %s (%s)\n", s.name, seconds(time.Since(start)))
	}
	if s.tests == nil && len(r.failures) > before {
		fmt.Fprintf(out, "  FAIL  %s (%s)\n", s.name, seconds(time.Since(start)))
	}
}

// command runs in a process group of its own, which as a whole is told to end
// when the context does.
func command(ctx context.Context, env, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = toTidyUp
	return cmd
}

// tailLines is how much of a command's output a failure shows.
const tailLines = 60

// A tail passes lines on and keeps the last ones.
type tail struct {
	mu    sync.Mutex
	out   io.Writer
	rest  string
	lines []string
}

func newTail(out io.Writer) *tail { return &tail{out: out} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(t.rest+string(p), "\n")
	t.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		t.add(line)
	}
	return len(p), nil
}

func (t *tail) add(line string) {
	if strings.HasPrefix(line, "go: downloading ") || strings.TrimSpace(line) == "" {
		return
	}
	fmt.Fprintln(t.out, "        "+line)
	t.lines = append(t.lines, line)
	t.lines = t.lines[max(0, len(t.lines)-tailLines):]
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(slices.Concat(t.lines, []string{t.rest}), "\n")
}

// lineWriter hands whole lines of any length to a function.
type lineWriter struct {
	*io.PipeWriter
	done chan struct{}
}

func newLineWriter(each func(line []byte)) *lineWriter {
	r, w := io.Pipe()
	l := &lineWriter{w, make(chan struct{})}
	go func() {
		defer close(l.done)
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadBytes('\n')
			if len(line) > 0 {
				each(line)
			}
			if err != nil {
				return
			}
		}
	}()
	return l
}

// finish waits until the last line was handled.
func (l *lineWriter) finish() {
	_ = l.PipeWriter.Close() // never fails
	<-l.done
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
