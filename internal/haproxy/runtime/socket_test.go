package runtime

import (
	"bufio"
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

// What is said of a transaction, a lock or memory is not about the certificate:
// the same is tried again.
func TestAnAnswerAboutSomethingElseIsNoRefusal(t *testing.T) {
	const own = "abort ssl cert certs/a.pem\n"
	for _, c := range []struct{ name, at, answer, aborts string }{
		{"locked at set", "set", "Can't update the certificate!\nOperations on certificates are currently locked!\n\n", own},
		{"locked at commit", "commit", "Can't commit the certificate!\nOperations on certificates are currently locked!\n\n", own},
		{"no memory for a buffer", "set", "Can't allocate memory\nCan't update certs/a.pem!\n\n", own},
		{"no memory for a copy", "set", "Cannot allocate memory!\nCan't update certs/a.pem!\n\n", own},
		{"somebody has aborted it", "commit", "No ongoing transaction! !\nCan't commit certs/a.pem!\n\n", own},
		{"another file's is open", "set", "The ongoing transaction is about 'certs/b.pem' but you are trying to set 'certs/a.pem'\nCan't update certs/a.pem!\n\n", "abort ssl cert certs/b.pem\n"},
		{"another file's has taken the payload", "commit", "The ongoing transaction is about 'certs/b.pem' but you are trying to set 'certs/a.pem'\nCan't commit certs/a.pem!\n\n", "abort ssl cert certs/b.pem\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t, func(command string) string {
				switch {
				case strings.HasPrefix(command, c.at):
					return c.answer
				case strings.HasPrefix(command, "set ssl cert"):
					return "Transaction updated for certificate certs/b.pem!\n\n"
				}
				return "Transaction aborted for certificate!\n\n"
			})
			err := Admin{l.Socket}.SetCertificate(t.Context(), "certs/a.pem", []byte("A\n"))
			var refused *Refusal
			if first, _, _ := strings.Cut(c.answer, "\n"); err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), first) {
				t.Errorf("error: %v, refusal: %v", err, refused)
			}
			if last := l.told[len(l.told)-1]; last != c.aborts {
				t.Errorf("told %q last, want %q", last, c.aborts)
			}
		})
	}
}

// A file may be called as it likes.
func TestARefusalIsAboutTheContentWhateverTheFileIsCalled(t *testing.T) {
	const file = "certs/allocate-memory.ongoing-transaction.pem"
	l := listen(t, func(string) string {
		return "unable to load certificate from file '" + file + "': bad end line.\nCan't load the payload\nCan't update " + file + "!\n\n"
	})
	var refused *Refusal
	if err := (Admin{l.Socket}).SetCertificate(t.Context(), file, []byte("A\n")); !errors.As(err, &refused) {
		t.Errorf("error: %v", err)
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

func TestAHoldTellsTheWorkersEndFromAnAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		conn, err := socket.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		commands := bufio.NewScanner(conn)
		for _, answer := range []string{"", showInfo, "Permission denied"} {
			commands.Scan()
			_, _ = io.WriteString(conn, answer+prompt)
		}
	}()
	hold, err := (Admin{Socket(path)}).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.conn.Close()
	if info, err := hold.Info(); err != nil || info.PID != 7 {
		t.Errorf("an answer: %+v, %v", info, err)
	}
	if _, err := hold.Info(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an answer that does not parse: %v", err)
	}
	for range 2 { // the second finds that there is nobody to write to
		if _, err := hold.Info(); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
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
