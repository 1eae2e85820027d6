/** The guest broke the frame format or a body layout (guest/PROTOCOL.md); ends the channel, never the server. */
export class ProtocolViolation extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'ProtocolViolation';
  }
}
