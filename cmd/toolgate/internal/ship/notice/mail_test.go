package notice_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/policy/approval"
)

// receivedMail is one mail that a server accepted.
type receivedMail struct {
	from, to  string
	encrypted bool
	user      string
	*mail.Message
	body string
}

// mailServer is a mail server on this machine that somebody else wrote. It
// refuses mail for nobody@example.org.
type mailServer struct {
	addr string

	mu    sync.Mutex // protects mails
	mails []receivedMail
}

const password = "planted-p@ss"

type mailBackend struct{ *mailServer }

type mailSession struct {
	*mailServer
	conn *smtp.Conn
	receivedMail
}

func (o mailBackend) NewSession(c *smtp.Conn) (smtp.Session, error) {
	return &mailSession{mailServer: o.mailServer, conn: c}, nil
}

func (d *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (d *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, pass string) error {
		if user != "gate" || pass != password {
			return &smtp.SMTPError{Code: 535, Message: "not you, whose password is " + pass}
		}
		d.user = user
		return nil
	}), nil
}

func (d *mailSession) Mail(from string, _ *smtp.MailOptions) error { d.from = from; return nil }

func (d *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	if to == "nobody@example.org" {
		return &smtp.SMTPError{Code: 550, Message: "nobody here, you with " + password}
	}
	d.to = to
	return nil
}

func (d *mailSession) Data(r io.Reader) error {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(m.Body)
	if err != nil {
		return err
	}
	got := d.receivedMail
	_, got.encrypted = d.conn.TLSConnectionState()
	got.Message, got.body = m, strings.NewReplacer("=\r\n", "", "=3D", "=").Replace(string(body))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mails = append(d.mails, got)
	return nil
}

func (d *mailSession) Reset()        {}
func (d *mailSession) Logout() error { return nil }

func (o *mailServer) got() []receivedMail {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.mails)
}

func (o *mailServer) wait(t testing.TB, n int) []receivedMail {
	t.Helper()
	until(t, "mail", func() bool { return len(o.got()) >= n })
	return o.got()
}

// newMailServer opens a mail server: in the clear, with STARTTLS, or encrypted from
// the first byte.
func newMailServer(t testing.TB, secure *tls.Config, implicit bool) *mailServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &mailServer{addr: l.Addr().String()}
	s := smtp.NewServer(mailBackend{o})
	s.Domain, s.AllowInsecureAuth, s.ErrorLog = "localhost", true, log.New(io.Discard, "", 0)
	if implicit {
		l = tls.NewListener(l, secure)
	} else {
		s.TLSConfig = secure
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return o
}

// certificate is one for 127.0.0.1 and example.com, and who vouches for it.
func certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, roots
}

func mailTo(url string, to ...string) notice.Channel {
	return notice.Channel{Email: to, SMTP: url, From: "Gate <gate@example.org>"}
}

// mailSender starts a sender that trusts roots and finds every mail server at o.
func (w *world) mailSender(roots *x509.CertPool, addr string, channels ...notice.Channel) *notice.Sender {
	w.t.Helper()
	opts := w.options(w.db)
	opts.Roots = roots
	s, err := notice.New(opts, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	s.DialWith(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	if err := s.Apply(channels); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	s.Start()
	return s
}

func TestMail(t *testing.T) {
	w, o := newWorld(t), newMailServer(t, nil, false)
	s := w.sender(mailTo("smtp://"+o.addr, "ann@example.org"))
	k := w.held(`{"password":"hunter2"}`, func(h *approval.Held) { h.Principal.Subject = "agent-7\r\nBcc: evil@example.org" })
	w.change(s, k, asked)
	got := o.wait(t, 1)[0]
	if got.from != "gate@example.org" || got.to != "ann@example.org" || got.encrypted || got.user != "" {
		t.Errorf("%+v", got)
	}
	if got.Header.Get("Bcc") != "" || got.Header.Get("Auto-Submitted") != "auto-generated" || !strings.HasPrefix(got.Header.Get("Message-ID"), "<ntc_") {
		t.Errorf("%v", got.Header)
	}
	for _, want := range []string{"asks to call manage_wallet", "Rule: threshold\r\n", "https://gate.example/console/approvals/" + k.ID + "\r\n"} {
		if !strings.Contains(got.body, want) {
			t.Errorf("the mail does not say %q:\n%s", want, got.body)
		}
	}
	if strings.Contains(got.body, "hunter2") || strings.Contains(got.body, "\nBcc") {
		t.Errorf("the mail says what it must not:\n%s", got.body)
	}
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 && w.count("email:127.0.0.1 sent") == 1 })
}

// Servers elsewhere are spoken to encrypted, by a certificate that is trusted,
// or not at all; the password goes to no other.
func TestMailIsEncrypted(t *testing.T) {
	secure, roots := certificate(t)
	strangers := x509.NewCertPool()
	const user = "gate:planted-p%40ss@"
	for name, c := range map[string]struct {
		server   *tls.Config
		implicit bool
		roots    *x509.CertPool
		url      string
		fault    string // "" = delivered, encrypted
	}{
		"STARTTLS":             {secure, false, roots, "smtp://" + user + "example.com", ""},
		"from the first byte":  {secure, true, roots, "smtps://" + user + "example.com", ""},
		"STARTTLS on loopback": {secure, false, roots, "smtp://" + user + "127.0.0.1", ""},
		"not offered":          {nil, false, roots, "smtp://" + user + "example.com", "it offers no encryption, or no sign-in that may be used"},
		"not offered, no user": {nil, false, roots, "smtp://example.com", "it offers no encryption, or no sign-in that may be used"},
		"not trusted":          {secure, false, strangers, "smtp://" + user + "example.com", "its certificate is not trusted"},
		"smtps, not trusted":   {secure, true, strangers, "smtps://" + user + "example.com", "its certificate is not trusted"},
		"another name":         {secure, false, roots, "smtp://" + user + "example.net", "its certificate is not trusted"},
		"wrong password":       {secure, false, roots, "smtp://gate:planted@example.com", "it answered with code 535"},
		"no TLS on the port":   {nil, false, roots, "smtps://" + user + "example.com", "it offers no encryption, or no sign-in that may be used"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := newWorld(t), newMailServer(t, c.server, c.implicit)
			s := w.mailSender(c.roots, o.addr, mailTo(c.url, "ann@example.org"))
			w.change(s, w.held(`{}`, nil), asked)
			until(t, "a try", func() bool { return len(o.got()) > 0 || w.rows("fault <> ''") > 0 })
			if c.fault == "" {
				if got := o.wait(t, 1)[0]; !got.encrypted || got.user != "gate" {
					t.Errorf("encrypted %v, user %q", got.encrypted, got.user)
				}
				until(t, "delivery", func() bool { return w.rows("TRUE") == 0 })
			} else if got := w.troubles(s); len(got) != 1 || got[0].Fault != c.fault || len(o.got()) != 0 {
				t.Errorf("%+v and %d mails, want %s", got, len(o.got()), c.fault)
			}
			if strings.Contains(w.log.String(), "planted") {
				t.Errorf("the log has the password:\n%s", w.log.String())
			}
		})
	}
}

// A password goes over no connection that is in the clear, but to this machine.
func TestPasswordInTheClear(t *testing.T) {
	w, o := newWorld(t), newMailServer(t, nil, false)
	w.change(w.sender(mailTo("smtp://gate:planted-p%40ss@"+o.addr, "ann@example.org")), w.held(`{}`, nil), asked)
	if got := o.wait(t, 1)[0]; got.user != "gate" || got.encrypted {
		t.Errorf("%+v", got)
	}
}

// An address that is refused keeps nothing from the others, and what the server
// said of it is not repeated.
func TestRefusedAddress(t *testing.T) {
	w, o := newWorld(t), newMailServer(t, nil, false)
	s := w.sender(mailTo("smtp://"+o.addr, "nobody@example.org", "ann@example.org"))
	w.change(s, w.held(`{}`, nil), asked)
	o.wait(t, 1)
	until(t, "the refusal", func() bool { return w.rows("fault = 'it answered with code 550'") == 1 })
	if got := o.got(); len(got) != 1 || got[0].to != "ann@example.org" {
		t.Errorf("%+v", got)
	}
	if strings.Contains(w.log.String(), password) || strings.Contains(w.log.String(), "nobody@example.org") {
		t.Errorf("the log repeats the server:\n%s", w.log.String())
	}
}

// scripted is a mail server that answers each line as play says, and hangs up
// when it says so.
func scripted(t testing.TB, play func(line string) (answer string, more bool)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for answer, more := play("hello"); more; answer, more = play(lines.Text()) {
					if _, err := io.WriteString(conn, answer); err != nil || !lines.Scan() {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		tasks.Wait()
	})
	return l.Addr().String()
}

// What the server took is delivered, whatever it does then.
func TestMailTakenThenSilence(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	mails, data := 0, false
	addr := scripted(t, func(line string) (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case line == "hello":
			return "220 hello\r\n", true
		case line == "DATA":
			data = true
			return "354 go on\r\n", true
		case data && line == ".":
			data = false
			mails++
			return "250 taken\r\n", true
		case data:
			return "", true
		}
		return "250 well\r\n", line != "RSET" && line != "QUIT"
	})
	s := w.sender(mailTo("smtp://"+addr, "ann@example.org"))
	w.change(s, w.held(`{}`, nil), asked)
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 && w.count("email:127.0.0.1 sent") == 1 })
	mu.Lock()
	defer mu.Unlock()
	if mails != 1 {
		t.Errorf("%d mails", mails)
	}
}

// A server that says nothing does not hold up the end.
func TestSilentMailServer(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := w.sender(mailTo("smtp://"+l.Addr().String(), "ann@example.org"))
	w.change(s, w.held(`{}`, nil), asked)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.Close()
	if w.rows("fault = '' AND dead = 0") != 1 {
		t.Error("the notice is not ready for the next sender")
	}
}
