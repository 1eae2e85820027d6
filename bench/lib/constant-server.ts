import fastify from 'fastify';

/** The floor of the control plane: fastify returning one constant object; prints its URL. */
const app = fastify();
app.get('/', async () => ({ constant: true }));
console.log(await app.listen({ host: '127.0.0.1', port: 0 }));
