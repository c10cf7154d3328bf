// Package openssl runs the operator image's `openssl` with the provider
// (oqsprovider), for the algorithms that Go lacks. What goes in and out goes
// through pipes: nothing is written to a file, and no secret stands in an
// argument.
package openssl

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"qtls.dev/qtls/internal/algorithms"
)

// patience is how long an operation may take; the slowest, of SPHINCS+, take a
// second or two.
const patience = time.Minute

// What may be wrong, besides what openssl says of its inputs.
var (
	// ErrWrongSignature says that a signature, or one of a chain, is wrong.
	ErrWrongSignature = errors.New("the signature is wrong")
	// ErrUnavailable says that openssl or its provider cannot be run: not a word
	// about the inputs.
	ErrUnavailable = errors.New("openssl with the provider " + algorithms.Provider + ", which has the algorithms that Go lacks, cannot be run (the operator's image has both)")
)

// GenerateKey makes a private key, in PEM form.
func GenerateKey(algorithm string) ([]byte, error) {
	return run(command{name: "genpkey", arguments: []string{"-algorithm", algorithm}})
}

// Sign a message with a private key in PEM form.
func Sign(key, message []byte) ([]byte, error) {
	return run(command{name: "dgst", arguments: []string{"-sign", input(0)}, inputs: [][]byte{key}, stdin: message})
}

// Verify a signature of a message with a public key, a SubjectPublicKeyInfo in
// DER form.
func Verify(public, message, signature []byte) error {
	public = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	return verified(run(command{name: "dgst", arguments: []string{"-verify", input(0), "-signature", input(1)}, inputs: [][]byte{public, signature}, stdin: message}))
}

// VerifyChain checks that a leaf's chain leads, through some of the others, to
// one of the anchors at a time, and that it is good for a purpose (sslserver,
// sslclient), if one is named. All are certificates in PEM form.
func VerifyChain(leaf, others, anchors []byte, purpose string, at time.Time) error {
	c := command{name: "verify", inputs: [][]byte{leaf, anchors}, arguments: []string{
		"-attime", strconv.FormatInt(at.Unix(), 10), "-partial_chain", "-no-CApath", "-no-CAstore", "-CAfile", input(1)}}
	if purpose != "" {
		c.arguments = append(c.arguments, "-purpose", purpose)
	}
	if len(others) > 0 {
		c.inputs, c.arguments = append(c.inputs, others), append(c.arguments, "-untrusted", input(2))
	}
	c.arguments = append(c.arguments, input(0))
	return verified(run(c))
}

// verified tells what was found wrong from what could not be verified.
func verified(_ []byte, err error) error {
	if err != nil && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrWrongSignature, err)
	}
	return err
}

type command struct {
	name      string
	arguments []string
	inputs    [][]byte
	stdin     []byte
}

// input is the path under which the command finds an input.
func input(i int) string { return "/dev/fd/" + strconv.Itoa(3+i) }

func run(c command) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Options come before what is not one.
	arguments := append([]string{c.name, "-provider", "default", "-provider", algorithms.Provider}, c.arguments...)
	cmd := exec.CommandContext(ctx, "openssl", arguments...)
	cmd.Stdin = bytes.NewReader(c.stdin)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	var writers []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for range c.inputs {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(cmd.ExtraFiles)
			closeAll(writers)
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		cmd.ExtraFiles, writers = append(cmd.ExtraFiles, r), append(writers, w)
	}
	err := cmd.Start()
	closeAll(cmd.ExtraFiles) // openssl has its own: what it leaves unread fails to be written once it is gone
	if err != nil {
		closeAll(writers)
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var writing sync.WaitGroup
	for i, w := range writers {
		writing.Go(func() {
			_, _ = w.Write(c.inputs[i]) // openssl says what it misses
			_ = w.Close()
		})
	}
	err = cmd.Wait()
	writing.Wait() // the inputs are the caller's again
	var exit *exec.ExitError
	ended := errors.As(err, &exit) && exit.Exited() // by itself, rather than killed
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: openssl %s took longer than %s", ErrUnavailable, c.name, patience)
	case strings.Contains(problem.String(), "unable to load provider"):
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, reason(problem.String()))
	case err != nil && !ended:
		return nil, fmt.Errorf("%w: openssl %s: %w", ErrUnavailable, c.name, err)
	case err != nil:
		return nil, fmt.Errorf("openssl %s: %w: %s", c.name, err, reason(problem.String()))
	}
	return out.Bytes(), nil
}

// reason is the last line of what openssl says, without the numbers before it.
func reason(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if fields := strings.SplitN(last, ":", 3); len(fields) == 3 && fields[1] == "error" {
		last = fields[2]
	}
	const most = 300
	return last[:min(len(last), most)]
}
