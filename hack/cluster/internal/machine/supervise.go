package machine

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// restartAfter is the pause before a daemon that ended is started again.
const restartAfter = time.Second

// supervise is PID 1: it starts the daemons, restarts them, and reaps every orphan of the machine.
func supervise(file string) error {
	spec, err := readSpec(file)
	if err != nil {
		return err
	}
	if err := relay(spec.Relay); err != nil {
		return err
	}
	watchLifeline(spec.Lifeline)
	s := &supervisor{spec: spec, running: map[int]Daemon{}}
	for _, d := range spec.Daemons {
		go s.start(d)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // ECHILD: the first daemon is not yet started
			continue
		}
		s.ended(pid, status)
	}
}

type supervisor struct {
	spec Spec
	// mu is held from before a process starts until it is in running, so that its end, seen by
	// supervise at any moment, always finds it there.
	mu      sync.Mutex
	running map[int]Daemon
}

// start waits for what the daemon needs and starts it. A failure to start counts as an end.
func (s *supervisor) start(d Daemon) {
	if d.After != "" {
		if err := waitFor(d.After); err != nil {
			fmt.Fprintf(os.Stderr, "%s: waiting for %s: %v\n", d.Name, d.After, err)
			return
		}
	}
	log, err := os.OpenFile(filepath.Join(LogDir, s.spec.LogFile(d.Name)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", d.Name, err)
		return
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", d.Name, err)
		return
	}
	defer null.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(filepath.Join(BinDir, d.Args[0]), d.Args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(log, "cannot start %s: %v\n", d.Args[0], err)
		time.AfterFunc(restartAfter, func() { s.start(d) })
		return
	}
	s.running[pid] = d
}

// ended restarts the daemon that the process was; any other process was an orphan.
func (s *supervisor) ended(pid int, status syscall.WaitStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.running[pid]
	if !ok {
		return
	}
	delete(s.running, pid)
	fmt.Fprintf(os.Stderr, "%s %s: %s, starting it again\n", time.Now().Format(time.TimeOnly), d.Name, describe(status))
	time.AfterFunc(restartAfter, func() { s.start(d) })
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("ended by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("ended with code %d", status.ExitStatus())
}

// watchLifeline ends the machine when the other end of the inherited pipe is closed, which the
// kernel does when the process that held it dies, however it dies.
func watchLifeline(use bool) {
	f := os.NewFile(lifelineFD, "lifeline")
	if !use {
		f.Close()
		return
	}
	syscall.CloseOnExec(lifelineFD)
	go func() {
		_, _ = io.Copy(io.Discard, f)
		os.Exit(0) // the kernel then kills every process of the machine
	}()
}

// relay passes connections to the inherited listener on to a TCP address of this machine. The
// listener belongs to the network namespace of whoever made it: the host's.
func relay(to string) error {
	f := os.NewFile(listenerFD, "listener")
	if to == "" {
		return f.Close()
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("the inherited listener: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintf(os.Stderr, "relay: %v\n", err)
				time.Sleep(100 * time.Millisecond)
				continue
			}
			go pass(c.(*net.TCPConn), to)
		}
	}()
	return nil
}

// pass copies both ways until both ends have closed theirs.
func pass(client *net.TCPConn, to string) {
	defer client.Close()
	c, err := net.Dial("tcp", to)
	if err != nil {
		return // the API server is not up yet: the client sees its connection closed and tries again
	}
	server := c.(*net.TCPConn)
	defer server.Close()
	var wg sync.WaitGroup
	half := func(dst, src *net.TCPConn) {
		_, _ = io.Copy(dst, src)
		_ = dst.CloseWrite()
	}
	wg.Go(func() { half(server, client) })
	half(client, server)
	wg.Wait()
}
