// Command app is what the smoke test runs in pods.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: app serve | get URL | burn | eat | keep FILE | print TEXT...")
	}
	switch args[0] {
	case "serve":
		return serve(ctx)
	case "get":
		return get(ctx, args[1])
	case "burn":
		return burn()
	case "eat":
		return eat()
	case "keep":
		return keep(ctx, args[1])
	case "print":
		_, err := fmt.Println(strings.Join(args[1:], " "))
		return err
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// serve answers every request with the pod's name.
func serve(ctx context.Context) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, name)
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// get prints what a URL answers.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// burn asks for one CPU over two seconds and prints the share that it got.
func burn() error {
	begin, used := time.Now(), cpuTime()
	for time.Since(begin) < 2*time.Second {
	}
	_, err := fmt.Printf("%.2f\n", float64(cpuTime()-used)/float64(time.Since(begin)))
	return err
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// eat takes memory until it is stopped.
func eat() error {
	var all [][]byte
	for len(all) < 1024 {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		all = append(all, b)
	}
	return fmt.Errorf("took %d MiB unhindered", len(all))
}

// keep writes the file unless it is there, prints it and stays.
func keep(ctx context.Context, file string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(file, []byte("written "+time.Now().Format(time.RFC3339Nano)+" by "+name), 0o644); err != nil {
			return err
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fmt.Println(string(content))
	<-ctx.Done()
	return nil
}
