package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// listener answers each connection and keeps what it was told. Answers end with
// an empty line, as HAProxy's do.
type listener struct {
	Socket
	mu   sync.Mutex
	told []string
}

func listen(t *testing.T, answer func(command string) string) *listener {
	t.Helper()
	l := &listener{Socket: Socket(filepath.Join(t.TempDir(), "s"))}
	socket, err := net.Listen("unix", string(l.Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			command, _ := io.ReadAll(conn)
			l.mu.Lock()
			l.told = append(l.told, string(command))
			l.mu.Unlock()
			_, _ = io.WriteString(conn, answer(string(command)))
			conn.Close()
		}
	}()
	return l
}

func TestARefusedCertificateIsAborted(t *testing.T) {
	for name, refusedAt := range map[string]string{"at set": "set ssl cert", "at commit": "commit ssl cert"} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, func(command string) string {
				switch {
				case strings.HasPrefix(command, refusedAt):
					return "inconsistencies between private key and certificate\nCan't update certs/a.pem!\n\n"
				case strings.HasPrefix(command, "set ssl cert"):
					return "Transaction created for certificate certs/a.pem!\n\n"
				}
				return "Transaction aborted for certificate 'certs/a.pem'!\n\n"
			})
			err := Admin{l.Socket}.SetCertificate(t.Context(), "certs/a.pem", []byte("A\n\nB\n"))
			var refused *Refusal
			if !errors.As(err, &refused) || !strings.Contains(refused.Message, "inconsistencies") {
				t.Errorf("error: %v", err)
			}
			if first := l.told[0]; first != "set ssl cert certs/a.pem <<\nA\nB\n\n" {
				t.Errorf("told %q", first)
			}
			if last := l.told[len(l.told)-1]; last != "abort ssl cert certs/a.pem\n" {
				t.Errorf("told %q last, want an abort", last)
			}
		})
	}
}

// A worker that ends in mid-command has refused nothing: the same is tried again.
func TestACutAnswerIsNoRefusal(t *testing.T) {
	for name, answer := range map[string]string{"nothing": "", "half a line": "Transaction crea", "a line": "Loading certificates/a.pem\n"} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, func(string) string { return answer })
			err := Admin{l.Socket}.SetCertificate(t.Context(), "certs/a.pem", []byte("A\n"))
			var refused *Refusal
			if !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &refused) {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestServersAreMovedOutOfService(t *testing.T) {
	l := listen(t, func(string) string { return "\n\n" })
	if err := (Admin{l.Socket}).DisableServer(t.Context(), "backend.web", "g1-1"); err != nil {
		t.Fatal(err)
	}
	if l.told[0] != "set server backend.web/g1-1 state maint\n" {
		t.Errorf("told %q", l.told[0])
	}
}

func TestAnErrorTellsNoSecret(t *testing.T) {
	_, err := Socket(filepath.Join(t.TempDir(), "none")).do(t.Context(), "set ssl cert a <<\nTHE KEY\n")
	if err == nil || strings.Contains(err.Error(), "THE KEY") || !strings.Contains(err.Error(), "set ssl cert a") {
		t.Errorf("error: %v", err)
	}
}

func TestACommandEndsWithItsContext(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	silent := listen(t, func(string) string { <-end; return "" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := silent.do(ctx, "show info"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error: %v", err)
	}
}
