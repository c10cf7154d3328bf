package hsm

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
)

const (
	// writeTimeout bounds the sending of a request: an hsmd that reads nothing
	// is as good as gone.
	writeTimeout = 5 * time.Second
	// afterWrite is how long an alert may take that says why a connection ended
	// that could not be written to.
	afterWrite = 10 * time.Second
	// idleTimeout closes a connection that nothing waits on, well before the
	// daemon would (60 s).
	idleTimeout = 20 * time.Second
	// generateTimeout is how long hsmd may take to answer Generate. It makes one
	// key at a time, each within 300 s, and begins none after it has waited for
	// as long (crypto/hsmd/src/work.rs).
	generateTimeout = 2*300*time.Second + writeTimeout
	// findTimeout is how long a search may take: whoever looks for keys of several
	// pools does not wait for one that hangs as long as its signatures may take.
	findTimeout = 10 * time.Second
	// hungFor is how long one that gave no answer in time is not asked again: about
	// as long as until its pool asks for its status.
	hungFor = 10 * time.Second
)

// keepAlive finds out within 20 seconds that a peer is gone without a word.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// Credentials are what a client shows and trusts, in PEM: the keys ca.crt,
// tls.crt and tls.key of a Secret.
type Credentials struct {
	CA, Certificate, Key []byte
}

// Config makes of them what New takes. Errors carry no key material.
func (c Credentials) Config(serverName string) (*tls.Config, error) {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(c.CA) {
		return nil, errors.New("ca.crt holds no certificate in PEM form")
	}
	certificate, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, fmt.Errorf("tls.crt and tls.key: %w", err)
	}
	return &tls.Config{ServerName: serverName, RootCAs: authorities, Certificates: []tls.Certificate{certificate}}, nil
}

// Client of one hsmd. It keeps one connection, made when it is needed, and has
// any number of requests on it at a time. It is safe for concurrent use.
type Client struct {
	address string
	config  *tls.Config
	timeout time.Duration

	mu sync.Mutex
	// current is the latest connection, which may have ended; nil before the
	// first. dialing is closed when the one that is being made is there or not.
	current *connection
	dialing chan struct{}
	closed  bool
	// hung is the error of a request that had no answer in time, and that of all
	// until then, but for Status, whose answer ends it. So an hsmd that hangs costs
	// one time-out, however many ask.
	hung      error
	hungUntil time.Time
}

// New is a client of the hsmd at address (host:port), whose requests take no
// longer than timeout, but for Generate. Of config it takes the names and
// certificates; TLS 1.3 with X25519MLKEM768 is all that it speaks.
func New(address string, config *tls.Config, timeout time.Duration) *Client {
	config = config.Clone()
	config.MinVersion = tls.VersionTLS13
	config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
	config.NextProtos = []string{Protocol}
	return &Client{address: address, config: config, timeout: timeout}
}

// Address of the hsmd.
func (c *Client) Address() string { return c.address }

// Close ends the connection, and what waits on it.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.current != nil {
		c.current.end(net.ErrClosed)
	}
}

// Status of the daemon and its token.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask(ctx, c, opStatus, nil, unmarshalStatus)
}

// Find shows a private key.
func (c *Client) Find(ctx context.Context, key Key) (Object, error) {
	body, err := marshalKey(key)
	if err != nil {
		return Object{}, err
	}
	return ask(ctx, c, opFind, body, unmarshalObject)
}

// Sign data with a private key, as the token's mechanism does it.
func (c *Client) Sign(ctx context.Context, key Key, mechanism Mechanism, data []byte) ([]byte, error) {
	body, err := marshalSign(key, mechanism, data)
	if err != nil {
		return nil, err
	}
	return ask(ctx, c, opSign, body, unmarshalSignature)
}

// Generate makes a key pair in the token, which may take ten minutes. It is
// refused where the label is taken. Where no answer came, the key may be there
// all the same: Find says.
func (c *Client) Generate(ctx context.Context, algorithm v1alpha1.KeyAlgorithm, key Key) (Object, error) {
	body, err := marshalGenerate(algorithm, key)
	if err != nil {
		return Object{}, err
	}
	return ask(ctx, c, opGenerate, body, unmarshalObject)
}

// Retire destroys a key pair in the token.
func (c *Client) Retire(ctx context.Context, key Key) error {
	body, err := marshalKey(key)
	if err != nil {
		return err
	}
	_, err = ask(ctx, c, opRetire, body, unmarshalNothing)
	return err
}

// ask sends a request and reads its answer. What may be asked twice is, once,
// if the connection ended that an earlier request had made: the daemon closes
// those that it finds idle, and all when it is restarted.
func ask[T any](ctx context.Context, c *Client, op operation, body []byte, unmarshal func([]byte) (T, error)) (T, error) {
	var zero T
	if len(body) > maxBody {
		return zero, fmt.Errorf("%s: %d bytes are %w (%d)", op, len(body), errTooLong, maxBody)
	}
	if err := c.hangs(); err != nil && op != opStatus {
		return zero, err
	}
	timeout := c.timeout
	switch op {
	case opGenerate:
		timeout = max(timeout, generateTimeout)
	case opFind:
		timeout = min(timeout, findTimeout)
	}
	// One after the other: to destroy a key waits until another is made.
	manages := op == opGenerate || op == opRetire
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, timeout)
	defer cancel()
	answer, reused, err := c.try(ctx, op, body)
	if reused && errors.Is(err, errEnded) && (op == opStatus || op == opFind || op == opSign) {
		answer, _, err = c.try(ctx, op, body)
	}
	if err != nil {
		err = c.failed(op, err)
		if ctx.Err() != nil && caller.Err() == nil && !manages {
			c.remember(err)
		}
		return zero, err
	}
	if op == opStatus {
		c.remember(nil)
	}
	if answer.kind != 0 {
		refusal, err := unmarshalRefusal(answer.body)
		if err != nil {
			return zero, c.failed(op, err)
		}
		return zero, c.refused(op, refusal)
	}
	result, err := unmarshal(answer.body)
	if err != nil {
		return zero, c.failed(op, err)
	}
	return result, nil
}

// hangs is why the hsmd is not asked.
func (c *Client) hangs() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.hungUntil) {
		return c.hung
	}
	return nil
}

// remember that it hangs; nil: it does not.
func (c *Client) remember(hung error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hung, c.hungUntil = hung, time.Now().Add(hungFor)
}

func (c *Client) failed(op operation, err error) error {
	var refusal *Refusal
	if errors.As(err, &refusal) { // of the connection
		return c.refused(op, refusal)
	}
	return &memberError{c.address, kindOf(err), fmt.Errorf("%s: %w", op, err)}
}

func (c *Client) refused(op operation, refusal *Refusal) error {
	return fmt.Errorf("hsmd at %s: %s: %w", c.address, op, refusal)
}

// errEnded is in the error of a request whose connection ended before the
// answer came.
var errEnded = errors.New("the connection ended")

// try asks once. reused says that the connection was there before.
func (c *Client) try(ctx context.Context, op operation, body []byte) (answer frame, reused bool, err error) {
	for {
		conn, reused, err := c.connect(ctx)
		if err != nil {
			return frame{}, false, err
		}
		answer, sent, err := conn.ask(ctx, op, body)
		if sent || !reused {
			return answer, reused, err
		}
	}
}

// connect gives the connection, and makes one where there is none. One is made
// at a time; who waits for it gives up with its own context.
func (c *Client) connect(ctx context.Context) (conn *connection, reused bool, err error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return nil, false, net.ErrClosed
		case c.current != nil && c.current.alive():
			conn := c.current
			c.mu.Unlock()
			return conn, true, nil
		case c.dialing == nil:
			c.dialing = make(chan struct{})
			c.mu.Unlock()
			conn, err := c.dial(ctx)
			return conn, false, err
		}
		wait := c.dialing
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

func (c *Client) dial(ctx context.Context) (*connection, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{KeepAliveConfig: keepAlive}, Config: c.config}
	raw, err := dialer.DialContext(ctx, "tcp", c.address)

	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.dialing)
	c.dialing = nil
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			err = cutOffError{err}
		}
		return nil, err
	}
	secure := raw.(*tls.Conn)
	switch got := secure.ConnectionState().NegotiatedProtocol; {
	case got != Protocol:
		err = malformedError(fmt.Sprintf("ALPN chose %q", got))
	case c.closed:
		err = net.ErrClosed
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	c.current = newConnection(secure)
	return c.current, nil
}

// connection to an hsmd, from a finished handshake to its end.
type connection struct {
	conn *tls.Conn
	// ended is closed when nothing can be asked any more.
	ended chan struct{}

	// writing keeps requests apart.
	writing sync.Mutex

	mu sync.Mutex
	// err says why it ended.
	err error
	// last is the ID of the latest request, waiting who waits for answers.
	last    uint64
	waiting map[uint64]chan frame
	idle    *time.Timer
}

func newConnection(conn *tls.Conn) *connection {
	c := &connection{conn: conn, ended: make(chan struct{}), waiting: map[uint64]chan frame{}}
	c.idle = time.AfterFunc(idleTimeout, c.endIdle)
	go c.read()
	return c
}

func (c *connection) alive() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// end closes the connection; the first error is told to all who wait.
func (c *connection) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

func (c *connection) endLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.idle.Stop()
	close(c.ended)
	// Not Close, which waits for writers: one may be stuck.
	_ = c.conn.NetConn().Close()
}

func (c *connection) endIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.endLocked(errors.New("it was idle"))
	}
}

// ask sends a request and waits for its answer. sent is false where the
// connection had ended before.
func (c *connection) ask(ctx context.Context, op operation, body []byte) (answer frame, sent bool, err error) {
	id, answers, err := c.enter()
	if err != nil {
		return frame{}, false, err
	}
	defer c.leave(id)
	c.write(frame{id, byte(op), body}.marshal())
	select {
	case f := <-answers:
		return f, true, nil
	case <-ctx.Done():
		return frame{}, true, ctx.Err()
	case <-c.ended:
		select {
		case f := <-answers: // it came before the end
			return f, true, nil
		default:
			return frame{}, true, fmt.Errorf("%w: %w", errEnded, c.err)
		}
	}
}

func (c *connection) enter() (uint64, <-chan frame, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errEnded, c.err)
	}
	c.idle.Stop()
	c.last++
	answer := make(chan frame, 1)
	c.waiting[c.last] = answer
	return c.last, answer, nil
}

func (c *connection) leave(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
	if len(c.waiting) == 0 && c.err == nil {
		c.idle.Reset(idleTimeout)
	}
}

// write sends a request. If it cannot, read tells why the connection ended,
// which it knows better: an alert may be there to be read.
func (c *connection) write(request []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := c.conn.Write(request); err != nil {
		_ = c.conn.SetReadDeadline(time.Now().Add(afterWrite))
	}
}

// read gives each answer to who waits for it, until the connection ends.
func (c *connection) read() {
	r := bufio.NewReader(c.conn)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = c.deliver(f)
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errors.New("a request could not be sent")
			}
			c.end(err)
			return
		}
	}
}

// deliver an answer. Who asked may have given up; nobody may not have asked. An
// answer to no request says why the connection is closed.
func (c *connection) deliver(f frame) error {
	if f.id == 0 && f.kind != 0 {
		refusal, err := unmarshalRefusal(f.body)
		if err != nil {
			return err
		}
		return refusal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.id == 0 || f.id > c.last {
		return malformed("it is to request %d, which was not made", f.id)
	}
	answer, ok := c.waiting[f.id]
	if !ok {
		return nil
	}
	select {
	case answer <- f:
		return nil
	default:
		return malformed("request %d is answered twice", f.id)
	}
}
